#include "bench/template_bench.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <ostream>
#include <vector>

#include "bench/measure/paired.h"
#include "engine/chat/chat_template.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

// User and assistant take turns, a few sentences each.
Json Chat(int n_messages) {
  Json messages = Json::array();
  for (int i = 0; i < n_messages; ++i) {
    std::string content;
    for (int sentence = 0; sentence < 4; ++sentence) {
      content += "Sentence " + std::to_string(sentence) + " of message " + std::to_string(i) +
                 " says something short. ";
    }
    messages.push_back({{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", content}});
  }
  return messages;
}

}  // namespace

int RunTemplateBench(std::ostream& out, const std::string& name, const std::string& source,
                     const TemplateBenchOptions& options) {
  const Json messages = Chat(options.messages);
  engine::RenderInput input;
  input.messages = &messages;
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  const auto compiled = engine::ChatTemplate::Compile(source);
  size_t bytes = 0;
  volatile size_t kept = 0;  // forces the work
  std::vector<double> compile_s, render_s, ratios;
  for (int round = 0; round < options.rounds + 1; ++round) {
    const double compiling = ThreadCpuSeconds(
        [&] { kept = kept + (engine::ChatTemplate::Compile(source) != nullptr ? 1 : 0); });
    const double rendering =
        ThreadCpuSeconds([&] { bytes = engine::JoinPieces(compiled->Render(input)).size(); });
    const double writing = ThreadCpuSeconds([&] { kept = kept + messages.dump().size(); });
    if (round == 0) continue;  // page faults
    compile_s.push_back(compiling);
    render_s.push_back(rendering);
    ratios.push_back(rendering / writing);
  }
  char line[256];
  std::snprintf(line, sizeof line,
                "%-40s %d messages, %zu bytes: %.3f ms = %.1f x writing them as JSON; compiled in "
                "%.3f ms\n",
                name.c_str(), options.messages, bytes, Median(render_s) * 1e3, Median(ratios),
                Median(compile_s) * 1e3);
  out << line << std::flush;
  return 0;
}

}  // namespace tandem::bench
