#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/io/atomic_write.h"
#include "engine/objects/object_tree.h"
#include "engine/objects/object_url.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/rank_guard.h"
#include "server/cli/spec_paths.h"
#include "server/cli/stores/run_mirror.h"
#include "server/cli/train_rank.h"
#include "server/cli/verbs.h"
#include "server/jobs/job_files.h"
#include "server/jobs/process_lock.h"
#include "training/dist/launch.h"
#include "training/run/run.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct TrainFlags {
  std::string spec;
  std::vector<std::string> overrides;
  std::string job_dir;
  std::optional<double> rank_timeout_s;
  ProgressFlags progress;
};

constexpr const char* kMemoryAdvice =
    "lower batch_size (per_device_batch_size), seq_len (max_target_length) or the "
    "LoRA rank, or raise resources.memory_max_bytes; tandem plan prints the memory that a run "
    "needs";

void WriteOutcome(const fs::path& dir, const training::TrainOutcome& outcome) {
  ordered_json result = {{"status", "succeeded"},
                         {"model_dir", outcome.model_dir.string()},
                         {"checkpoint", outcome.checkpoint.string()},
                         {"step", outcome.step},
                         {"loss", outcome.loss},
                         {"eval_loss", outcome.eval_loss},
                         {"best_eval_loss", outcome.best_eval_loss}};
  if (!outcome.adapter_dir.empty()) result["adapter_dir"] = outcome.adapter_dir.string();
  if (outcome.merged) result["merge"] = ordered_json::parse(MergeReportText(*outcome.merged));
  WriteResult(dir, result);
}

// A job continues from its own checkpoint, or from its beginning. Its result is the same, but late.
void RestoreFrom(RunMirror& mirror, bool is_job, std::stop_token stop) {
  const auto error = ErrorOf([&] { mirror.Restore(std::move(stop)); });
  if (!error) return;
  if (!is_job || error->code() == ErrorCode::kCancelled) throw Error(*error);
  spdlog::warn("run_mirror_unusable reason=\"{}\"", error->what());
}

int RunInDirectory(const training::TrainSpec& spec, const fs::path& dir, const ShownProgress* shown,
                   RunMirror* mirror = nullptr, bool is_job = false) {
  if (spec.resources.lower_priority) LowerPriority(spec.resources.memory_max_bytes);
  engine::RemoveStaleTemporaries(dir);  // left by a killed run
  const OpenJob job(dir, shown);

  if (mirror != nullptr) RestoreFrom(*mirror, is_job, job.context().stop);
  const JobContext context = mirror == nullptr ? job.context() : mirror->Watch(job.context());
  const training::TrainOutcome outcome = training::RunTraining(spec, context);
  const bool is_stopped = outcome.status == training::TrainOutcome::Status::kStopped;
  if (!is_stopped) WriteOutcome(dir, outcome);
  // The server publishes the results of a job.
  if (mirror != nullptr && !is_job) mirror->Finish();
  return is_stopped ? kExitTryAgain : 0;
}

// The local directory of a run on an object store. Its name holds the whole URL.
fs::path LocalBaseOf(const engine::ObjectUrl& url) {
  const fs::path cache = CacheDir();
  if (cache.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no folder for the run before its upload: set XDG_CACHE_HOME or HOME");
  }
  return cache / "runs" / (url.kind == engine::StoreKind::kS3 ? "s3" : "gs") / url.bucket / url.key;
}

training::TrainSpec LoadSpec(const TrainFlags& flags) {
  training::TrainSpec spec = training::LoadTrainSpec(flags.spec, flags.overrides);
  if (flags.rank_timeout_s) spec.parallel.rank_timeout_s = *flags.rank_timeout_s;
  // Not for jobs: paths of a request must lie below the model root.
  FindSpecPaths(spec);
  return spec;
}

int TrainLaunched(const TrainFlags& flags, const training::LaunchedRank& launched) {
  if (const std::optional<int> code = GuardRank(launched.rank)) return *code;
  ConfigureLog("info", LogFormat::kText);
  std::optional<ShownProgress> shown;
  if (launched.rank == 0) shown.emplace(flags.progress);
  const training::TrainSpec spec = LoadSpec(flags);
  if (engine::ParseObjectUrl(spec.base_output_directory.string())) {
    throw Error(ErrorCode::kUnsupported,
                "base_output_directory: several ranks cannot write to an object store yet: name a "
                "directory that all hosts share");
  }
  return TrainAsRank(
      spec, launched, shown ? &*shown : nullptr,
      [&](const training::TrainOutcome& outcome) { WriteOutcome(spec.run_dir(), outcome); });
}

int TrainSpecFile(const TrainFlags& flags) {
  const auto launched =
      training::FindLaunchedRank([](const char* name) { return std::getenv(name); });
  if (launched) return TrainLaunched(flags, *launched);
  ConfigureLog("info", LogFormat::kText);
  const ShownProgress shown(flags.progress);
  training::TrainSpec spec = LoadSpec(flags);
  const auto base = engine::ParseObjectUrl(spec.base_output_directory.string());
  if (base) {
    const engine::ObjectUrl run = *base / spec.run_name;
    if (!engine::IsSafeObjectName(run.key)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "base_output_directory and run_name: " + run.Text() + " cannot name a run");
    }
    spec.base_output_directory = LocalBaseOf(*base);
    MakeDirectories(spec.run_dir());
    const UniqueFd lock = LockRunDirectory(spec.run_dir());
    RunMirror mirror(run, spec.run_dir(), spec.checkpoint.keep);
    return RunInDirectory(spec, spec.run_dir(), &shown, &mirror);
  }
  MakeDirectories(spec.run_dir());
  const UniqueFd lock = LockRunDirectory(spec.run_dir());
  return RunInDirectory(spec, spec.run_dir(), &shown);
}

// Where the server wants the checkpoints of a job to be kept too.
std::optional<engine::ObjectUrl> MirrorOf(const fs::path& dir) {
  constexpr size_t kMaxUrlBytes = 4096;
  if (!fs::exists(dir / kMirrorFile)) return std::nullopt;
  std::string text = engine::ReadWholeFile(dir / kMirrorFile, kMaxUrlBytes);
  while (text.ends_with('\n')) text.pop_back();
  return engine::ParseObjectUrl(text);
}

int TrainJob(const TrainFlags& flags) {
  const fs::path dir = flags.job_dir;
  return EndInResult(dir, kMemoryAdvice, [&] {
    const fs::path json = dir / "spec.json";
    training::TrainSpec spec =
        training::LoadTrainSpec(fs::exists(json) ? json : dir / "spec.yaml", flags.overrides);
    spec.resources.lower_priority = true;
    const std::optional<engine::ObjectUrl> url = MirrorOf(dir);
    if (!url) return RunInDirectory(spec, dir, nullptr);
    RunMirror mirror(*url, dir, spec.checkpoint.keep);
    return RunInDirectory(spec, dir, nullptr, &mirror, true);
  });
}

}  // namespace

void AddTrain(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<TrainFlags>();
  command.add_option("spec", flags->spec,
                     "training spec (YAML or JSON); without it the words are the whole spec");
  command.add_option("overrides", flags->overrides, "key=value words that override the spec");
  command.add_option("--job", flags->job_dir,
                     "job directory: read spec.json or spec.yaml there, write events.jsonl and "
                     "result.json, run at the lowest priority");
  command
      .add_option(
          "--rank-timeout", flags->rank_timeout_s,
          "under mpirun: seconds without an answer of another rank after which the run ends "
          "with code 75; 0: no limit (default: parallel.rank_timeout_s)")
      ->check(CLI::Range(0.0, 1e9));
  AddProgressFlags(command, flags->progress);
  command.callback([flags, &exit_code] {
    if (!flags->job_dir.empty()) {
      // Without a spec argument the first positional word is an override.
      if (!flags->spec.empty()) {
        flags->overrides.insert(flags->overrides.begin(), flags->spec);
      }
      exit_code = TrainJob(*flags);
      return;
    }
    if (flags->spec.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "train: give a spec file, key=value words, or --job DIR");
    }
    exit_code = TrainSpecFile(*flags);
  });
}

}  // namespace tandem::server
