#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"
#include "training/run/evaluate.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

struct EvalFlags {
  std::string what;
  std::string data;
  std::string adapter;
  std::vector<std::string> overrides;
  bool json = false;
  std::string job_dir;
  ProgressFlags progress;
};

bool IsSpecFile(const fs::path& path) {
  const std::string extension = path.extension().string();
  return (extension == ".yaml" || extension == ".yml" || extension == ".json") &&
         fs::is_regular_file(path);
}

// The spec of a run, changed to evaluate the model or adapter that the run has exported.
training::TrainSpec SpecOfRun(const EvalFlags& flags, std::string* adapter) {
  training::TrainSpec spec = training::LoadTrainSpec(flags.what, flags.overrides);
  const fs::path exported = spec.run_dir() / (spec.lora.enable ? "adapter" : "hf");
  if (!fs::is_directory(exported)) {
    throw Error(ErrorCode::kNotFound,
                exported.string() + " does not exist: the run has exported nothing yet");
  }
  if (spec.lora.enable) {
    if (adapter->empty()) *adapter = exported.string();
  } else {
    spec.model.load_parameters_path = exported;
    spec.model.tokenizer_path.clear();
  }
  if (!flags.data.empty()) spec.data.eval = flags.data;
  if (spec.data.eval.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "eval: --data is required, since the spec has no data.eval");
  }
  return spec;
}

training::TrainSpec SpecOfModel(const EvalFlags& flags) {
  if (flags.data.empty())
    throw Error(ErrorCode::kInvalidArgument, "eval: --data is required: name a text file");
  std::vector<std::string> words = {"model.load_parameters_path=" + flags.what,
                                    "data.train=" + flags.data, "data.eval=" + flags.data,
                                    "train.steps=1"};
  words.insert(words.end(), flags.overrides.begin(), flags.overrides.end());
  return training::ParseTrainSpec("{}", "eval", words);
}

training::Evaluation Evaluate(const EvalFlags& flags) {
  std::string adapter = flags.adapter;
  training::TrainSpec spec =
      IsSpecFile(flags.what) ? SpecOfRun(flags, &adapter) : SpecOfModel(flags);
  FindSpecPaths(spec);
  return training::EvaluateModel(spec, adapter, CacheDir());
}

nlohmann::ordered_json ToJson(const training::Evaluation& result) {
  return {{"loss", result.loss},
          {"perplexity", result.perplexity},
          {"accuracy", result.accuracy},
          {"bits_per_byte", result.bits_per_byte},
          {"tokens", result.tokens}};
}

// Runs as a step of a pipeline. Fails if the loss exceeds max_loss, which stops the pipeline.
int EvalJob(EvalFlags flags) {
  const fs::path dir = flags.job_dir;
  return EndInResult(dir, "lower per_device_batch_size", [&] {
    const std::string file = (dir / "spec.json").string();
    const auto spec = engine::ParseUntrustedJson(engine::ReadWholeFile(file, 1 << 20), file);
    flags.what = engine::JsonStringOr(spec, "model", "", file);
    flags.data = engine::JsonStringOr(spec, "data", "", file);
    flags.adapter = engine::JsonStringOr(spec, "adapter", "", file);
    flags.overrides = spec.value("words", std::vector<std::string>());
    LowerPriority(0);
    RemoveResult(dir);
    EventLog events(dir);
    const training::Evaluation is = Evaluate(flags);
    events.Write({"message", 1, 1, is.loss, ToJson(is).dump()});
    const double max_loss = engine::JsonNumberOr(spec, "max_loss", 1e9, 0, 1e9, file);
    if (!(is.loss <= max_loss)) {
      throw Error(ErrorCode::kFailedPrecondition,
                  "the loss of " + flags.what + " is " + std::to_string(is.loss) +
                      ", above max_loss " + std::to_string(max_loss));
    }
    nlohmann::ordered_json result = {{"status", "succeeded"}};
    result.update(ToJson(is));
    WriteResult(dir, result);
    return 0;
  });
}

void Eval(const EvalFlags& flags) {
  ConfigureLog("info", LogFormat::kText);
  std::optional<ShownProgress> shown(flags.progress);
  const training::Evaluation result = Evaluate(flags);
  shown.reset();
  if (flags.json) {
    std::printf("%s\n", ToJson(result).dump().c_str());
    return;
  }
  std::printf("loss %.6f\nperplexity %.4f\naccuracy %.4f\nbits/byte %.4f\ntokens %lld\n",
              result.loss, result.perplexity, result.accuracy, result.bits_per_byte,
              static_cast<long long>(result.tokens));
}

}  // namespace

void AddEval(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<EvalFlags>();
  command.add_option("what", flags->what,
                     "model (directory, GGUF or llama2.c file, or ORG/NAME at the hub), or "
                     "training spec of a run that has exported a model");
  command.add_option("overrides", flags->overrides,
                     "key=value words that override the spec, such as data.max_target_length=512");
  command.add_option(
      "--data", flags->data,
      "text file to predict; delimiter lines separate samples (default: the spec's data.eval)");
  command.add_option("--adapter", flags->adapter, "LoRA adapter for the model, a PEFT directory");
  command.add_flag("--json", flags->json, "print one JSON object");
  AddProgressFlags(command, flags->progress);
  command.add_option("--job", flags->job_dir,
                     "job directory: read spec.json there, write events.jsonl and result.json, run "
                     "at the lowest priority");
  command.callback([flags, &exit_code] {
    if (!flags->job_dir.empty()) {
      exit_code = EvalJob(*flags);
      return;
    }
    if (flags->what.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "eval: give a model, a spec, or --job DIR");
    }
    Eval(*flags);
  });
}

}  // namespace tandem::server
