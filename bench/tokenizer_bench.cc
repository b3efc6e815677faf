#include "bench/tokenizer_bench.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <ostream>
#include <vector>

#include "bench/measure/paired.h"
#include "engine/base/utf8.h"

namespace tandem::bench {
namespace {

std::vector<std::string_view> Lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t size = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return lines;
}

}  // namespace

int RunTokenizerBench(std::ostream& out, const engine::Tokenizer& tokenizer, std::string_view text,
                      const TokenizerBenchOptions& options) {
  constexpr auto kPlain = engine::SpecialTokens::kPlainText;
  const std::vector<std::string_view> lines = Lines(text);
  const std::vector<TokenId> ids = tokenizer.Encode(text, kPlain);
  volatile size_t kept = 0;  // forces the work
  const struct {
    const char* name;
    std::function<void()> work;
  } cases[] = {
      {"encode, one text", [&] { kept = kept + tokenizer.Encode(text, kPlain).size(); }},
      {"encode, line by line",
       [&] {
         for (const std::string_view line : lines) {
           kept = kept + tokenizer.Encode(line, kPlain).size();
         }
       }},
      {"decode", [&] { kept = kept + engine::Decode(tokenizer, ids, false).size(); }},
  };
  const double megabytes = static_cast<double>(text.size()) * 1e-6;
  char line[160];
  std::snprintf(
      line, sizeof line,
      "%.1f MB of text, %zu tokens (%.2f bytes each), one thread, medians of %d rounds\n",
      megabytes, ids.size(),
      static_cast<double>(text.size()) / static_cast<double>(std::max<size_t>(1, ids.size())),
      options.rounds);
  out << line;
  for (const auto& one : cases) {
    std::vector<double> speeds, ratios;
    for (int round = 0; round < options.rounds + 1; ++round) {
      const double check = ThreadCpuSeconds([&] { kept = kept + ValidUtf8Prefix(text); });
      const double seconds = ThreadCpuSeconds(one.work);
      if (round == 0) continue;  // page faults
      speeds.push_back(megabytes / seconds);
      ratios.push_back(seconds / check);
    }
    std::snprintf(line, sizeof line, "  %-24s %6.1f MB/s per core = %.1f x a check of the UTF-8\n",
                  one.name, Median(speeds), Median(ratios));
    out << line << std::flush;
  }
  return 0;
}

}  // namespace tandem::bench
