#include "bench/fairness_bench.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::bench {
namespace {

FairnessBenchOptions TinyRun(const std::filesystem::path& dir) {
  WriteRandomModel({.config = TinyLlamaConfig(), .with_tokenizer = true}, dir);
  FairnessBenchOptions options;
  options.model = dir;
  options.engine.threads = 1;
  options.engine.memory_bytes = 256LL << 20;
  options.pairs = 2;
  options.requests = 10;
  options.batch_streams = 3;
  options.batch_prompt_tokens = 64;
  options.short_tokens = 8;
  options.long_tokens = 200;
  options.output_tokens = 4;
  return options;
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(FairnessBench, PrintsEveryPairAndTheRatios) {
  const tests::TemporaryDir dir;
  std::ostringstream out;

  EXPECT_EQ(RunFairnessBench(out, TinyRun(dir.path() / "model")), 0);

  EXPECT_EQ(CountOf(out.str(), "  first token p50 "), 2u) << out.str();
  EXPECT_EQ(CountOf(out.str(), "with / without batches: p50 "), 1u);
  EXPECT_EQ(CountOf(out.str(), "behind a prompt of 200 / alone: "), 1u);
}

TEST(FairnessBench, RefusesAPromptBeyondTheModelsContext) {
  const tests::TemporaryDir dir;
  FairnessBenchOptions options = TinyRun(dir.path() / "model");
  options.long_tokens = 256;
  std::ostringstream out;

  EXPECT_THROW(RunFairnessBench(out, options), Error);
}

}  // namespace
}  // namespace tandem::bench
