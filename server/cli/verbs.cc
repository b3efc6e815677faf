#include "server/cli/verbs.h"

namespace tandem::server {
namespace {

constexpr Verb kVerbs[] = {
    {"serve", "serve models over HTTP", AddServe},
    {"generate", "print a model's continuation of a prompt", AddGenerate},
    {"pull", "fetch a model from the Hugging Face hub into its cache", AddPull},
    {"train", "train a model as a spec says", AddTrain},
    {"data", "check, show, measure or prepare what a training spec would train on", AddData},
    {"plan", "print what a training spec would run: program, bytes, FLOPs", AddPlan},
    {"eval", "predict a text with a model: loss, perplexity, accuracy", AddEval},
    {"profile", "run a few steps of a training spec: time, FLOPs, memory", AddProfile},
    {"config", "explain keys of training specs, show a spec's values", AddConfig},
    {"quantize", "round a model's weights, and say what that changes", AddQuantize},
    {"checkpoint", "look into checkpoints", AddCheckpoint},
    {"convert", "write a model in another format, merge an adapter into it, or make one of it",
     AddConvert},
    {"pipeline", "run jobs that need one another: convert, train, export, serve", AddPipeline},
    {"tokenizer", "train a tokenizer, encode or decode with one", AddTokenizer},
    {"doctor", "say what this machine offers and what would be used", AddDoctor},
    {"bench", "measure this machine and what the program reaches on it", AddBench},
    {"version", "print version, commit and build", AddVersion},
    {"help", "explain a verb and its flags", AddHelp},
};

}  // namespace

std::span<const Verb> Verbs() { return kVerbs; }

}  // namespace tandem::server
