#include "server/cli/manual/examples.h"

#include <algorithm>

namespace tandem::server {
namespace {

constexpr VerbExample kExamples[] = {
    {"serve", "tandem serve", "serve the embedded model on http://127.0.0.1:8080"},
    {"serve", "tandem serve --model model-Q8_0.gguf --port 9000", "serve a GGUF file"},
    {"serve", "tandem serve --model ORG/NAME --dtype int8", "download a model, serve it in 8 bits"},
    {"run", "tandem run", "chat with the embedded model"},
    {"run", "cat letter.txt | tandem run model-Q8_0.gguf 'Summarise this letter:'",
     "answer one prompt that includes a file"},
    {"run", "tandem run --url http://127.0.0.1:8080", "chat with the model of a running server"},
    {"chat", "tandem chat ORG/NAME", "download a model and chat with it"},
    {"models", "tandem models", "list the models of the server on this machine"},
    {"models", "tandem models ORG/NAME", "show the memory and speed to expect, before a download"},
    {"models", "tandem models --families", "list the model families that this program knows"},
    {"ps", "tandem ps --url http://server:8080", "show what another server has loaded"},
    {"jobs", "tandem jobs", "list the newest jobs"},
    {"jobs list", "tandem jobs list --status running", "list the running jobs"},
    {"jobs show", "tandem jobs show JOB", "show a job"},
    {"jobs log", "tandem jobs log JOB --follow", "follow a job until it ends"},
    {"jobs cancel", "tandem jobs cancel JOB", "end a job"},
    {"jobs pause", "tandem jobs pause JOB", "stop a job after its next checkpoint"},
    {"jobs resume", "tandem jobs resume JOB", "continue a paused job"},
    {"ft create", "tandem ft create -m tandem-stories --file chats.jsonl --follow",
     "fine-tune a model of the server on chats"},
    {"ft list", "tandem ft list", "list the newest fine-tuning jobs"},
    {"ft show", "tandem ft show JOB", "show a fine-tuning job"},
    {"ft events", "tandem ft events JOB --follow", "follow its events"},
    {"ft cancel", "tandem ft cancel JOB", "end a fine-tuning job"},
    {"ft pause", "tandem ft pause JOB", "stop it after its next checkpoint"},
    {"ft resume", "tandem ft resume JOB", "continue it"},
    {"keys create", "tandem keys create --name alice --scopes infer,train",
     "make a key and print it once"},
    {"keys list", "tandem keys list", "list all keys, without their secrets"},
    {"keys revoke", "tandem keys revoke alice", "revoke a key, also in a running server"},
    {"generate", "tandem generate -p 'Once upon a time' --max-tokens 40",
     "continue a text with the embedded model"},
    {"pull", "tandem pull ORG/NAME", "download a model"},
    {"pull", "tandem pull ORG/NAME:Q4_K_M", "download one GGUF file of a repository"},
    {"train", "tandem train config/presets/continue-stories.yaml data.train=my.txt steps=60",
     "train on a text, with two values of the spec replaced"},
    {"train", "tandem train spec.yaml lora.rank=16", "train a LoRA adapter"},
    {"data check", "tandem data check spec.yaml data.train=chats.jsonl", "list the bad rows"},
    {"data show", "tandem data show spec.yaml --index 3 --tokens",
     "show a sample token by token, with the trained ones marked"},
    {"data stats", "tandem data stats spec.yaml", "count samples, tokens and duplicates"},
    {"data prepare", "tandem data prepare spec.yaml --out data.tok", "tokenise once for all runs"},
    {"plan", "tandem plan spec.yaml", "print the memory and time that a run needs"},
    {"plan", "tandem plan spec.yaml --sharding 4",
     "print the memory of each of four ranks of mpirun"},
    {"eval", "tandem eval runs/my-stories/hf --data held-out.txt", "measure loss and perplexity"},
    {"profile", "tandem profile spec.yaml --sweep per_device_batch_size=1,2,4",
     "compare the speed of three batch sizes"},
    {"config explain", "tandem config explain train.learning_rate", "explain a key of specs"},
    {"config show", "tandem config show spec.yaml", "print every value and where it comes from"},
    {"quantize", "tandem quantize -m model --dtype int4", "pack in 4 bits and report the error"},
    {"checkpoint ls", "tandem checkpoint ls runs/my-stories", "list the tensors"},
    {"checkpoint show", "tandem checkpoint show model.gguf", "describe a file and its origin"},
    {"checkpoint verify", "tandem checkpoint verify runs/my-stories", "check all files"},
    {"checkpoint diff", "tandem checkpoint diff model model.gguf", "compare two checkpoints"},
    {"checkpoint hash", "tandem checkpoint hash model", "hash the content"},
    {"checkpoint gc", "tandem checkpoint gc runs/my-stories --keep 2 --dry-run",
     "list the steps that gc would remove"},
    {"checkpoint export-params", "tandem checkpoint export-params runs/my-stories weights",
     "write the weights alone"},
    {"checkpoint reshard", "tandem checkpoint reshard model smaller --shard-bytes 500M",
     "rewrite the files in another size"},
    {"convert", "tandem convert model model.gguf --to gguf --dtype q8_0", "write a GGUF file"},
    {"convert", "tandem convert runs/singers/adapter merged --to hf --base model",
     "merge an adapter into its base"},
    {"pipeline run", "tandem pipeline run pipeline.yaml --dry-run", "list what would run"},
    {"deploy render", "tandem deploy render --env config.env --out deploy",
     "write all files of a deployment"},
    {"deploy variables", "tandem deploy variables", "list the variables of config.env"},
    {"deploy secret", "tandem deploy secret --env config.env HUGGINGFACE_TOKEN",
     "print the token for a pipe"},
    {"deploy sanitize", "tandem deploy sanitize --check .", "find secrets before a commit"},
    {"launch local", "tandem launch local spec.yaml --ranks 4",
     "print the mpirun of four processes; add --submit to start it"},
    {"launch ssh", "tandem launch ssh spec.yaml --hosts hosts.txt --submit",
     "compare the hosts, then train on all of them"},
    {"launch slurm", "tandem launch slurm spec.yaml --nodes 4 --option=--partition=long",
     "print a batch script"},
    {"launch k8s", "tandem launch k8s spec.yaml --image registry/tandem-trainer:1 --nodes 2",
     "print an MPIJob"},
    {"launch probe", "tandem launch probe", "what launch ssh compares"},
    {"launch job", "tandem launch job --dir jobs/job-1 --verb train",
     "what a scheduler starts for a server's job"},
    {"tokenizer train", "tandem tokenizer train text.txt --vocab-size 8000 -o tokenizer.json",
     "train a tokenizer"},
    {"tokenizer encode", "tandem tokenizer encode -t model 'Hello'", "print the ids of a text"},
    {"tokenizer decode", "tandem tokenizer decode -t model 1,2,3", "print the text of ids"},
    {"doctor", "tandem doctor", "print what this machine offers"},
    {"doctor", "tandem doctor --cache", "check all packed weights"},
    {"bench", "tandem bench roof", "measure the arithmetic and bandwidth of this machine"},
    {"version", "tandem version", "print version, commit and build"},
    {"help", "tandem help checkpoint ls", "explain a verb and its flags"},
    {"man", "tandem man serve | man -l -", "read the manual page of a verb"},
    {"man", "tandem man --dir ~/.local/share/man", "write all manual pages"},
    {"completion", "tandem completion bash > ~/.local/share/bash-completion/completions/tandem",
     "let bash complete verbs, flags and values"},
};

}  // namespace

std::span<const VerbExample> VerbExamples() { return kExamples; }

std::vector<VerbExample> ExamplesOf(std::string_view path) {
  path.remove_prefix(std::min(path.find(' '), path.size() - 1) + 1);
  std::vector<VerbExample> found;
  for (const VerbExample& example : kExamples) {
    if (example.verb == path) found.push_back(example);
  }
  return found;
}

}  // namespace tandem::server
