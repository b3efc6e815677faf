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
  std::string only;           // this job alone; what it needs must have been done
  std::string from;           // not those before it, which must have been done
  PathFinder find;
  ServerKeys keys;  // of the server that jobs of kind load speak to
  // This pipeline is a job of the server that its models are to be loaded into: it loads them when
  // all else is done, and jobs of kind load only say what.
  bool is_servers_job = false;
  std::filesystem::path program = "/proc/self/exe";
  int max_restarts = 3;  // of a process that was killed, without a new checkpoint in between
};

// How one job has ended, or would be begun.
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
  bool stopped = false;              // as asked: the same pipeline goes on from there
  std::optional<Error> fault;        // of the job that failed
  std::vector<std::string> loads;    // of a server's job: JSON of what it is to load
};

// Runs the jobs one after the other, each as a process of this program; a job that failed ends the
// pipeline. What has been done and is unchanged is not done again; what was begun goes on, also by
// the process that an earlier runner has left behind. context.report says what happens;
// context.stop asks the running process for a checkpoint and an end. Throws as MakeOrder,
// kFailedPrecondition when another runner works in the directory, kIo, and kDataLoss for a state
// that cannot be read.
PipelineOutcome RunPipeline(const PipelineSpec& spec, const PipelineOptions& options,
                            const JobContext& context);

// What RunPipeline would do, without doing any of it. `options.find` should not fetch anything.
struct PlannedJob {
  enum class Action {
    kRun,       // it has not been done
    kGoOn,      // it was begun
    kRunAnew,   // it was done, of something else
    kFollow,    // what it needs runs before it, and decides
    kKeep,      // it has been done and is unchanged
    kLeaveOut,  // by `only` or `from`
  };
  std::string name;
  std::string kind;
  std::vector<std::string> needs;
  Action action = Action::kRun;
  std::map<std::string, std::string> outputs;
};
const char* Describe(PlannedJob::Action action);
std::vector<PlannedJob> PlanPipeline(const PipelineSpec& spec, const PipelineOptions& options);

// Of a pipeline in whose directory nobody works: spec.json of the conversions that were begun and
// have not ended.
std::vector<std::filesystem::path> UnfinishedConversions(const std::filesystem::path& dir);

}  // namespace tandem::server
