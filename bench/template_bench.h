#pragma once

#include <iosfwd>
#include <string>

namespace tandem::bench {

struct TemplateBenchOptions {
  int messages = 100;
  int rounds = 21;
};

// Milliseconds of one core's time to compile a chat template and to render a chat of so many
// messages with it, beside writing the same messages as JSON, the least that handling a chat costs.
// `name` is printed in front of the line.
int RunTemplateBench(std::ostream& out, const std::string& name, const std::string& source,
                     const TemplateBenchOptions& options);

}  // namespace tandem::bench
