#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/job_context.h"
#include "server/pipeline/kinds.h"
#include "server/pipeline/serving.h"
#include "server/pipeline/spec.h"

namespace tandem::server {

struct PipelineOptions {
  std::filesystem::path dir;  // of state and outputs
  std::string only;           // run this job alone; its needs must be done
  std::string from;           // skip the jobs before it; they must be done
  PathFinder find;
  ServerKeys keys;  // of the server that `load` jobs use
  // True: this pipeline runs as a job of a server. `load` jobs then only report their order, and
  // the server loads the models after the pipeline has ended.
  bool is_servers_job = false;
  std::filesystem::path program = "/proc/self/exe";
  int max_restarts = 3;  // of a killed process, without a new checkpoint in between
};

// The result of one job.
struct PipelineJobEnd {
  enum class State { kDone, kUnchanged, kFailed, kStopped, kNotRun };
  std::string name;
  std::string kind;
  State state = State::kNotRun;
  double seconds = 0;
  std::map<std::string, std::string> outputs;
  std::string result_json = "{}";
};
const char* NameOf(PipelineJobEnd::State state);

struct PipelineOutcome {
  std::vector<PipelineJobEnd> jobs;  // in the order of the spec
  bool stopped = false;              // on request; the same pipeline resumes from here
  std::optional<Error> fault;        // of the failed job
  std::vector<std::string> loads;    // only with is_servers_job: JSON of each model to load
};

// Runs the jobs in order, each as a process of this program; a failed job ends the pipeline.
// Unchanged jobs are skipped. Interrupted jobs resume, including a process that an earlier runner
// left behind.
//
// context.report receives the progress. context.stop asks the running process to write a checkpoint
// and end.
//
// Throws as MakeOrder, kFailedPrecondition if another runner works in the directory, kAlreadyExists
// if an output path is not this pipeline's own, kIo, and kDataLoss for an unreadable state.
PipelineOutcome RunPipeline(const PipelineSpec& spec, const PipelineOptions& options,
                            const JobContext& context);

// Predicts RunPipeline without running a job. `options.find` should not download anything.
struct PlannedJob {
  enum class Action {
    kRun,       // not done yet
    kGoOn,      // resumes
    kRunAnew,   // done with other inputs; runs from the beginning
    kFollow,    // decided when the jobs it needs have run
    kKeep,      // done and unchanged
    kLeaveOut,  // excluded by `only` or `from`
  };
  std::string name;
  std::string kind;
  std::vector<std::string> needs;
  Action action = Action::kRun;
  std::map<std::string, std::string> outputs;
};
const char* Describe(PlannedJob::Action action);
std::vector<PlannedJob> PlanPipeline(const PipelineSpec& spec, const PipelineOptions& options);

// spec.json of each conversion that started and has not ended. REQUIRES: no runner works in `dir`.
std::vector<std::filesystem::path> UnfinishedConversions(const std::filesystem::path& dir);

}  // namespace tandem::server
