#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "server/cli/model_options.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"
#include "training/evaluate.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

struct EvalFlags {
  std::string what;
  std::string data;
  std::string adapter;
  std::vector<std::string> overrides;
  bool json = false;
};

bool IsSpecFile(const fs::path& path) {
  const std::string extension = path.extension().string();
  return (extension == ".yaml" || extension == ".yml" || extension == ".json") &&
         fs::is_regular_file(path);
}

// What the run of a spec has exported is what is evaluated.
training::TrainSpec SpecOfRun(const EvalFlags& flags, std::string* adapter) {
  training::TrainSpec spec = training::LoadTrainSpec(flags.what, flags.overrides);
  const fs::path exported = spec.run_dir() / (spec.lora.enable ? "adapter" : "hf");
  if (!fs::is_directory(exported)) {
    throw Error(ErrorCode::kNotFound, exported.string() + ": the run has exported nothing yet");
  }
  if (spec.lora.enable) {
    if (adapter->empty()) *adapter = exported.string();
  } else {
    spec.model.load_parameters_path = exported;
    spec.model.tokenizer_path.clear();
  }
  if (!flags.data.empty()) spec.data.eval = flags.data;
  if (spec.data.eval.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "eval: --data must name a text; the spec has none");
  }
  return spec;
}

training::TrainSpec SpecOfModel(const EvalFlags& flags) {
  if (flags.data.empty()) throw Error(ErrorCode::kInvalidArgument, "eval: --data must name a text");
  std::vector<std::string> words = {"model.load_parameters_path=" + flags.what,
                                    "data.train=" + flags.data, "data.eval=" + flags.data,
                                    "train.steps=1"};
  words.insert(words.end(), flags.overrides.begin(), flags.overrides.end());
  return training::ParseTrainSpec("{}", "eval", words);
}

void Eval(const EvalFlags& flags) {
  std::string adapter = flags.adapter;
  training::TrainSpec spec =
      IsSpecFile(flags.what) ? SpecOfRun(flags, &adapter) : SpecOfModel(flags);
  FindSpecPaths(spec);
  const training::Evaluation result = training::EvaluateModel(spec, adapter, CacheDir());
  if (flags.json) {
    const nlohmann::ordered_json line = {{"loss", result.loss},
                                         {"perplexity", result.perplexity},
                                         {"accuracy", result.accuracy},
                                         {"bits_per_byte", result.bits_per_byte},
                                         {"tokens", result.tokens}};
    std::printf("%s\n", line.dump().c_str());
    return;
  }
  std::printf("loss %.6f\nperplexity %.4f\naccuracy %.4f\nbits/byte %.4f\ntokens %lld\n",
              result.loss, result.perplexity, result.accuracy, result.bits_per_byte,
              static_cast<long long>(result.tokens));
}

}  // namespace

void AddEval(CLI::App& command, int&) {
  const auto flags = std::make_shared<EvalFlags>();
  command
      .add_option(
          "what", flags->what,
          "a model (directory, GGUF or llama2.c file, ORG/NAME of the hub), or the training "
          "spec of a run that has exported one")
      ->required();
  command.add_option("overrides", flags->overrides,
                     "key=value words of a training spec, such as data.max_target_length=512");
  command.add_option("--data", flags->data,
                     "text to predict, samples between delimiter lines; default: the spec's "
                     "data.eval");
  command.add_option("--adapter", flags->adapter, "LoRA adapter of the model, a PEFT directory");
  command.add_flag("--json", flags->json, "print one JSON object");
  command.callback([flags] { Eval(*flags); });
}

}  // namespace tandem::server
