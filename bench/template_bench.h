#pragma once

#include <iosfwd>
#include <string>

namespace tandem::bench {

struct TemplateBenchOptions {
  int messages = 100;
  int rounds = 21;
};

// Measures one core's milliseconds to compile a chat template and to render a chat with it.
// Rendering is compared with writing the messages as JSON, the least cost of handling a chat.
// `name` starts the printed line.
int RunTemplateBench(std::ostream& out, const std::string& name, const std::string& source,
                     const TemplateBenchOptions& options);

}  // namespace tandem::bench
