#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/progress.h"
#include "engine/hub/options.h"
#include "engine/hub/pull.h"
#include "engine/hub/reference.h"
#include "engine/io/atomic_write.h"
#include "engine/objects/fetched_path.h"
#include "server/cli/job_child.h"
#include "server/cli/model_options.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/spec_paths.h"
#include "server/cli/verbs.h"
#include "server/pipeline/run.h"
#include "training/spec/spec.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr size_t kMaxPipelineBytes = 1 << 20;

struct PipelineFlags {
  std::string spec;
  std::vector<std::string> overrides;
  std::string dir;
  std::string only;
  std::string from;
  bool dry_run = false;
  bool json = false;
  std::string job_dir;
  ProgressFlags progress;
};

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// The cached path of ORG/NAME, without a download; else `path` itself.
std::string CachedPath(const std::string& path) {
  const auto reference = engine::ParseHubReference(path);
  if (fs::exists(path) || !reference) return path;
  std::string cached = path;
  // An error: not in the cache, the job fetches it at its start.
  ErrorOf([&] {
    cached = engine::FindPulledModel(*reference, engine::HubOptionsFromEnvironment()).string();
  });
  return cached;
}

PipelineSpec Load(const PipelineFlags& flags) {
  return LoadPipelineSpec(flags.spec, flags.overrides, FromThisEnvironment());
}

PipelineOptions OptionsOf(const PipelineFlags& flags, const PipelineSpec& spec) {
  PipelineOptions options;
  options.dir = !flags.dir.empty()  ? fs::path(flags.dir)
                : !spec.dir.empty() ? spec.dir
                                    : fs::path("pipelines") / spec.name;
  options.only = flags.only;
  options.from = flags.from;
  options.keys = {FromEnvironment("TANDEM_ADMIN_KEY"), FromEnvironment("TANDEM_API_KEY")};
  return options;
}

ordered_json OutputsJson(const std::map<std::string, std::string>& outputs) {
  ordered_json out = ordered_json::object();
  for (const auto& [what, path] : outputs) out[what] = path;
  return out;
}

int Plan(const PipelineFlags& flags) {
  const PipelineSpec spec = Load(flags);
  PipelineOptions options = OptionsOf(flags, spec);
  options.find.model = CachedPath;
  const std::vector<PlannedJob> plan = PlanPipeline(spec, options);
  ordered_json jobs = ordered_json::array();
  if (!flags.json) std::printf("%s in %s\n", spec.name.c_str(), options.dir.c_str());
  for (const PlannedJob& job : plan) {
    jobs.push_back({{"name", job.name},
                    {"kind", job.kind},
                    {"needs", job.needs},
                    {"action", Describe(job.action)},
                    {"outputs", OutputsJson(job.outputs)}});
    if (flags.json) continue;
    std::string needs;
    for (const std::string& need : job.needs) needs += (needs.empty() ? " after " : ", ") + need;
    std::printf("  %s (%s)%s: %s\n", job.name.c_str(), job.kind.c_str(), needs.c_str(),
                Describe(job.action));
    for (const auto& [what, path] : job.outputs) {
      std::printf("    %-10s  %s\n", what.c_str(), path.c_str());
    }
  }
  if (!flags.json) return 0;
  const ordered_json summary = {
      {"name", spec.name}, {"dir", fs::absolute(options.dir).string()}, {"jobs", jobs}};
  std::printf("%s\n", summary.dump(2).c_str());
  return 0;
}

ordered_json Summary(const PipelineSpec& spec, const fs::path& dir,
                     const PipelineOutcome& outcome) {
  ordered_json jobs = ordered_json::object();
  for (const PipelineJobEnd& job : outcome.jobs) {
    jobs[job.name] = {{"kind", job.kind},
                      {"state", NameOf(job.state)},
                      {"seconds", job.seconds},
                      {"outputs", OutputsJson(job.outputs)},
                      {"result", ordered_json::parse(job.result_json, nullptr, false)}};
  }
  return {{"name", spec.name}, {"dir", fs::absolute(dir).string()}, {"jobs", jobs}};
}

int Run(const PipelineFlags& flags) {
  const PipelineSpec spec = Load(flags);
  PipelineOptions options = OptionsOf(flags, spec);
  options.find = {[](const std::string& path) { return engine::FetchedPath(path); }, FindSpecPaths};
  // With --json, standard output holds only the summary.
  std::FILE* const lines = flags.json ? stderr : stdout;
  const StopOnSignal stop;
  ConfigureLog("info", LogFormat::kText);
  std::optional<ShownProgress> shown(flags.progress);
  std::optional<ProgressTask> task(std::in_place, "pipeline " + spec.name, "", 0);
  JobContext context;
  context.dir = options.dir;
  context.stop = stop.token();
  context.report = [&](const ProgressEvent& event) {
    task->SetTotal(event.total_steps);
    task->Reach(event.step);
    shown->Print([&] {
      std::fprintf(lines, "%s%s\n", event.kind == "warning" ? "warning: " : "",
                   event.message.c_str());
      std::fflush(lines);
    });
  };
  const PipelineOutcome outcome = RunPipeline(spec, options, context);
  task.reset();
  shown.reset();
  if (flags.json) {
    ordered_json summary = Summary(spec, options.dir, outcome);
    summary["status"] = outcome.fault ? "failed" : outcome.stopped ? "stopped" : "succeeded";
    if (outcome.fault) summary["error"] = outcome.fault->what();
    std::printf("%s\n",
                summary.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
  }
  if (outcome.fault) throw *outcome.fault;
  return outcome.stopped ? kExitTryAgain : 0;
}

// Runs as a job of a server: spec.json has absolute paths, and the server itself runs the load
// jobs.
int RunAsJob(const PipelineFlags& flags) {
  const fs::path dir = fs::absolute(flags.job_dir).lexically_normal();
  return EndInResult(dir, "", [&] {
    const fs::path file = dir / "spec.json";
    PipelineSpec spec =
        ParsePipelineSpec(engine::ReadWholeFile(file, kMaxPipelineBytes), file.string(), {}, {});
    spec.spec_dir = dir;
    LowerPriority(0);
    const OpenJob job(dir);
    PipelineOptions options;
    options.dir = dir;
    options.is_servers_job = true;
    const PipelineOutcome outcome = RunPipeline(spec, options, job.context());
    if (outcome.fault) throw *outcome.fault;
    if (outcome.stopped) return kExitTryAgain;
    ordered_json result = {{"status", "succeeded"}};
    result.update(Summary(spec, dir, outcome));
    result["loads"] = ordered_json::array();
    for (const std::string& load : outcome.loads) {
      result["loads"].push_back(ordered_json::parse(load));
    }
    WriteResult(dir, result);
    return 0;
  });
}

}  // namespace

void AddPipeline(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<PipelineFlags>();
  command.add_option("--job", flags->job_dir,
                     "job directory: read spec.json there, write events.jsonl and result.json, run "
                     "at the lowest priority");
  CLI::App* run =
      command.add_subcommand("run",
                             "run the jobs of a pipeline, each after the jobs it needs; skip jobs "
                             "that are done and unchanged, resume interrupted ones");
  run->add_option("spec", flags->spec, "pipeline (YAML or JSON)")->required();
  run->add_option("overrides", flags->overrides,
                  "key=value words that override the spec, such as jobs.finetune.steps=100");
  run->add_option("--dir", flags->dir,
                  "directory for state and outputs (default: the spec's dir, or pipelines/NAME)");
  auto* only =
      run->add_option("--only", flags->only, "run only this job; the jobs it needs must be done");
  run->add_option("--from", flags->from, "start at this job; the jobs before it must be done")
      ->excludes(only);
  run->add_flag("--dry-run", flags->dry_run, "check the spec and list what would run; run nothing");
  run->add_flag("--json", flags->json,
                "end with one JSON object on standard output; progress goes to standard error");
  AddProgressFlags(*run, flags->progress);
  run->callback([flags, &exit_code] { exit_code = flags->dry_run ? Plan(*flags) : Run(*flags); });
  command.callback([flags, run, &exit_code] {
    if (run->parsed()) return;
    if (flags->job_dir.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "pipeline: give 'run SPEC', or --job DIR");
    }
    exit_code = RunAsJob(*flags);
  });
}

}  // namespace tandem::server
