#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/pipeline/spec.h"

namespace tandem::training {
struct TrainSpec;
}

namespace tandem::server {

// What a job of some kind may be told, and what it makes.
struct PipelineKind {
  const char* name;
  const char* verb;                       // of the child process; null: it has none
  std::span<const char* const> keys;      // besides kind and needs
  std::span<const char* const> required;  // of these
  std::span<const char* const> outputs;   // what ${jobs.NAME.…} may ask for
  bool takes_training_keys = false;       // any other key is one of a training spec
};

const PipelineKind* FindPipelineKind(std::string_view name);  // null: there is none
std::string PipelineKindNames();
// The nearest of some names, for "did you mean".
std::string NearestName(std::string_view name, std::span<const char* const> known);

// How names of a spec become paths; the program's verbs know more of them than this room does. Both
// may fetch what is not there.
struct PathFinder {
  std::function<std::string(const std::string& path)> model;  // ORG/NAME of the hub
  std::function<void(training::TrainSpec& spec)> training;    // all paths of a training spec
};

// Where a job works and what it makes.
struct PipelinePlaces {
  std::filesystem::path job;  // its process's directory: spec.json, events.jsonl, result.json, …
  std::filesystem::path out;  // what it makes, where that lies elsewhere; empty: in `job`
};
PipelinePlaces PlacesOf(const PipelineJob& job, const std::filesystem::path& pipeline_dir);

// A job made ready: references replaced, checked as its process will check it.
struct PipelineOrder {
  PipelinePlaces places;
  std::string spec_json;  // what its process reads
  std::string identity;   // all that decides what comes out, but for the inputs' contents
  std::vector<std::filesystem::path> inputs;   // files and directories that it reads
  std::map<std::string, std::string> outputs;  // what it will make, as far as that is known before
};

// `outputs` of all that it needs: those made, or those expected. Throws kInvalidArgument,
// kNotFound, kAlreadyExists naming job and key; with `are_expected`, inputs need not be there yet.
PipelineOrder MakeOrder(const PipelineSpec& spec, const PipelineJob& job,
                        const std::filesystem::path& pipeline_dir, const PipelineOutputs& outputs,
                        const PathFinder& find, bool are_expected);

// What the result of a finished process says that it has made.
std::map<std::string, std::string> OutputsOf(const PipelineJob& job, const PipelineOrder& order,
                                             const std::string& result_json);

}  // namespace tandem::server
