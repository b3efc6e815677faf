#include "server/cli/verbs.h"

#include "server/cli/manual/help.h"

namespace tandem::server {
namespace {

constexpr Verb kVerbs[] = {
    {"serve", "serve models over HTTP", AddServe},
    {"run", "chat with a model, or answer one prompt", AddRun},
    {"chat", "the same as run", AddRun},
    {"models", "list the models of a server, or what to expect of a model here", AddModels},
    {"ps", "show the loaded models of a server, with their memory and requests", AddPs},
    {"jobs", "list, show, follow, pause and cancel the jobs of a server", AddJobs},
    {"ft", "fine-tune a model on a server: create, list, show, follow, pause and cancel", AddFt},
    {"keys", "create, list and revoke the API keys of a server", AddKeys},
    {"generate", "print a model's continuation of a prompt", AddGenerate},
    {"pull", "fetch a model from the Hugging Face hub into its cache", AddPull},
    {"train", "train a model from a training spec", AddTrain},
    {"data", "check, show, measure or prepare the data of a training spec", AddData},
    {"plan", "print the program, memory and FLOPs of a training spec", AddPlan},
    {"eval", "measure loss, perplexity and accuracy of a model on a text", AddEval},
    {"profile", "run a few steps of a training spec; report time, FLOPs and memory", AddProfile},
    {"config", "explain the keys of training specs, or show a spec's values", AddConfig},
    {"quantize", "quantise a model's weights and measure the difference", AddQuantize},
    {"checkpoint", "list, check, compare, hash, clean up and rewrite checkpoints", AddCheckpoint},
    {"convert", "write a model in another format, merge an adapter into it, or extract an adapter",
     AddConvert},
    {"pipeline", "run jobs that depend on each other: convert, train, export, serve", AddPipeline},
    {"deploy", "render the files of a deployment, and find secrets in a directory", AddDeploy},
    {"launch", "run a training spec or a server's job on other machines", AddLaunch},
    {"tokenizer", "train a tokenizer, or encode and decode text with one", AddTokenizer},
    {"doctor", "report the cores, memory, kernels and limits of this machine", AddDoctor},
    {"bench", "measure this machine and the program's speed on it", AddBench},
    {"version", "print version, commit and build", AddVersion},
    {"help", "explain a verb and its flags", AddHelp},
    {"man", "print the manual page of a verb, or write all pages", AddMan},
    {"completion", "print a completion script for bash, zsh or fish", AddCompletion},
};

}  // namespace

std::span<const Verb> Verbs() { return kVerbs; }

}  // namespace tandem::server
