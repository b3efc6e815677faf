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

// What one key of a job was given: a scalar, or a list of them. Environment variables have been
// replaced; `${jobs.NAME.WHAT}` still stands there until the job that it names has ended.
struct PipelineValue {
  std::vector<std::string> words;
  bool is_list = false;
  std::string origin;  // "spec.yaml:12", "command line"
};

// One job of a pipeline.
struct PipelineJob {
  std::string name;
  std::string kind;                // "convert", "train.sft", … (kinds.h)
  std::vector<std::string> needs;  // named in `needs` or by a reference, each once
  // All but kind and needs; names of nested maps with dots between them, in the order of the file.
  std::vector<std::pair<std::string, PipelineValue>> keys;
  std::string origin;

  const PipelineValue* Find(const std::string& key) const;
  // The scalar of a key; `fallback` when it is not given.
  std::string Text(const std::string& key, const std::string& fallback = "") const;
};

// A pipeline: jobs and what they need. Complete and checked: every need is there, nothing needs
// itself, every key is one of its kind. Plain, immutable.
struct PipelineSpec {
  std::string source;  // for messages
  std::string name;
  std::filesystem::path dir;       // of state and outputs; empty: not said
  std::filesystem::path spec_dir;  // that names of training specs are relative to
  std::vector<PipelineJob> jobs;   // every job behind all that it needs; else as in the file

  const PipelineJob* Find(const std::string& name) const;
};

// Where a spec comes from, which decides what it may say.
struct PipelineReading {
  // null: variables are refused, but for ${jobs.…}; who sends a spec over the network has no
  // business with this environment.
  std::function<const char*(const char* name)> environment;
};
PipelineReading FromThisEnvironment();

// Reads a spec (YAML, of which JSON is a part), then `key=value` words on top (jobs.NAME.KEY=…,
// name=…, dir=…). `${VAR}`, `${VAR:-default}` are replaced, in defaults too. Throws
// kInvalidArgument with every fault, one a line, each with file and line: an unknown key or name
// comes with the nearest known one.
PipelineSpec ParsePipelineSpec(const std::string& text, const std::string& source,
                               std::span<const std::string> overrides,
                               const PipelineReading& reading);
PipelineSpec LoadPipelineSpec(const std::filesystem::path& path,
                              std::span<const std::string> overrides,
                              const PipelineReading& reading);

// What finished jobs have made: by job, then by what ("out", "checkpoint", …).
using PipelineOutputs = std::map<std::string, std::map<std::string, std::string>>;

// `${jobs.NAME.WHAT}` in a text, each with what that job has made. Throws kFailedPrecondition for
// one that it has not made.
std::string ReplaceReferences(const std::string& text, const PipelineOutputs& outputs);

// Whether the text is one reference and nothing else.
bool IsReference(const std::string& text);

}  // namespace tandem::server
