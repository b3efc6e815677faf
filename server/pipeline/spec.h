#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tandem::server {

// The value of one key: a scalar or a list of scalars. Environment variables are already replaced;
// `${jobs.NAME.WHAT}` stays until the named job has ended.
struct PipelineValue {
  std::vector<std::string> words;
  bool is_list = false;
  std::string origin;  // "spec.yaml:12", "command line"
};

// One job of a pipeline.
struct PipelineJob {
  std::string name;
  std::string kind;                // "convert", "train.sft", … (kinds.h)
  std::vector<std::string> needs;  // from `needs` and from references, without duplicates
  // All keys except kind and needs, in the order of the file. Dots join the names of nested maps.
  std::vector<std::pair<std::string, PipelineValue>> keys;
  std::string origin;

  const PipelineValue* Find(const std::string& key) const;
  // The scalar of a key; `fallback` if the key is absent.
  std::string Text(const std::string& key, const std::string& fallback = "") const;
};

// A complete, checked pipeline: every need exists, there is no cycle, every key belongs to its
// kind. Immutable.
struct PipelineSpec {
  std::string source;  // for messages
  std::string name;
  std::filesystem::path dir;       // of state and outputs; empty: not given
  std::filesystem::path spec_dir;  // base of relative names of training specs
  std::vector<PipelineJob> jobs;   // topological order; ties keep the order of the file

  const PipelineJob* Find(const std::string& name) const;
};

// The rights of a spec, depending on its origin.
struct PipelineReading {
  // Null: environment variables are refused. A spec that arrives over the network must not read
  // this process's environment.
  std::function<const char*(const char* name)> environment;
};
PipelineReading FromThisEnvironment();

// Parses a YAML (or JSON) spec, then applies `key=value` overrides (jobs.NAME.KEY=…, name=…,
// dir=…). Replaces `${VAR}` and `${VAR:-default}`, in defaults too. Throws kInvalidArgument with
// every fault, one a line, with file and line. An unknown key or name comes with the nearest known
// one.
PipelineSpec ParsePipelineSpec(const std::string& text, const std::string& source,
                               std::span<const std::string> overrides,
                               const PipelineReading& reading);
PipelineSpec LoadPipelineSpec(const std::filesystem::path& path,
                              std::span<const std::string> overrides,
                              const PipelineReading& reading);

// Outputs of finished jobs: job name, then output name ("out", "checkpoint", …), then path.
using PipelineOutputs = std::map<std::string, std::map<std::string, std::string>>;

// Replaces each `${jobs.NAME.WHAT}` by its output. Throws kFailedPrecondition for an output that
// does not exist.
std::string ReplaceReferences(const std::string& text, const PipelineOutputs& outputs);

// Whether the whole text is a single reference.
bool IsReference(const std::string& text);

}  // namespace tandem::server
