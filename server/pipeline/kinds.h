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

// The keys that a kind of job accepts, and its outputs.
struct PipelineKind {
  const char* name;
  const char* verb;                       // of the child process; null: the runner does the work
                                          // itself
  std::span<const char* const> keys;      // besides kind and needs
  std::span<const char* const> required;  // subset of `keys`
  std::span<const char* const> outputs;   // valid names in ${jobs.NAME.…}
  bool takes_training_keys = false;       // any other key is one of a training spec
};

const PipelineKind* FindPipelineKind(std::string_view name);  // null: unknown kind
std::string PipelineKindNames();
// The name in `known` with the smallest edit distance, for "did you mean".
std::string NearestName(std::string_view name, std::span<const char* const> known);

// Resolves names of a spec to local paths. The program's verbs implement it, because this room does
// not know every source. Both functions may download files.
struct PathFinder {
  std::function<std::string(const std::string& path)> model;  // accepts ORG/NAME of the hub
  std::function<void(training::TrainSpec& spec)> training;    // resolves all paths of the spec in
                                                              // place
};

// Where a job works and where it writes its output.
struct PipelinePlaces {
  std::filesystem::path job;  // the process's directory: spec.json, events.jsonl, result.json, …
  std::filesystem::path out;  // the output, if it is outside `job`; empty: inside `job`
};
PipelinePlaces PlacesOf(const PipelineJob& job, const std::filesystem::path& pipeline_dir);

// A job ready to run: references are replaced and values are checked as its process checks them.
struct PipelineOrder {
  PipelinePlaces places;
  std::string spec_json;  // the process's spec.json
  std::string identity;   // every value that decides the output, without the inputs' contents
  std::vector<std::filesystem::path> inputs;   // files and directories that the job reads
  std::map<std::string, std::string> outputs;  // expected outputs, as far as they are known in
                                               // advance
};

// `outputs` holds the outputs of every job in `job.needs`: actual ones, or expected ones if
// `are_expected`. Expected inputs need not exist, and only then is a conversion's spec checked in
// full. Throws kInvalidArgument, kNotFound, kFailedPrecondition (an output is missing) or the error
// of the failed check; the message names the job and the key.
PipelineOrder MakeOrder(const PipelineSpec& spec, const PipelineJob& job,
                        const std::filesystem::path& pipeline_dir, const PipelineOutputs& outputs,
                        const PathFinder& find, bool are_expected);

// Outputs of a finished job. A training job names its own in `result_json`; other kinds have
// `order.outputs`.
std::map<std::string, std::string> OutputsOf(const PipelineJob& job, const PipelineOrder& order,
                                             const std::string& result_json);

}  // namespace tandem::server
