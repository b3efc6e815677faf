#pragma once

#include <string>
#include <vector>

namespace tandem::server {

struct PipelineReading;

// Variables of the environment, and what stands for them where they are not set; references stay.
// Throws kInvalidArgument for one that is neither set nor has a default.
std::string ReplaceVariables(const std::string& text, const PipelineReading& reading);

// `${jobs.NAME.WHAT}`: what another job of the pipeline makes.
struct Reference {
  std::string text;  // as it stands there
  std::string job;
  std::string what;
  size_t begin = 0;  // in the text it was found in
};
std::vector<Reference> ReferencesIn(const std::string& text);

}  // namespace tandem::server
