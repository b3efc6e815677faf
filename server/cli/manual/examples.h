#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

struct VerbExample {
  std::string_view verb;     // without "tandem": "checkpoint ls"
  std::string_view command;  // as typed
  std::string_view effect;
};

// Every example; a test gives each verb at least one.
std::span<const VerbExample> VerbExamples();

// Examples of a verb ("tandem checkpoint ls"), without those of its verbs.
std::vector<VerbExample> ExamplesOf(std::string_view path);

}  // namespace tandem::server
