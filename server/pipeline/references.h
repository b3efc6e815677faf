#pragma once

#include <string>
#include <vector>

namespace tandem::server {

struct PipelineReading;

// Replaces environment variables, with their defaults where they are unset; `${jobs.…}` references
// stay. Throws kInvalidArgument for a variable that has neither a value nor a default.
std::string ReplaceVariables(const std::string& text, const PipelineReading& reading);

// `${jobs.NAME.WHAT}`: an output of another job of the pipeline.
struct Reference {
  std::string text;  // with "${" and "}"
  std::string job;
  std::string what;
  size_t begin = 0;  // offset in the searched text
};
std::vector<Reference> ReferencesIn(const std::string& text);

}  // namespace tandem::server
