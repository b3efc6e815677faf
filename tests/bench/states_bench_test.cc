#include "bench/states_bench.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::bench {
namespace {

StatesBenchOptions TinyStates(const char* family, const std::filesystem::path& dir) {
  WriteRandomModel({.config = TinyModelConfig(family), .with_tokenizer = true}, dir);
  StatesBenchOptions options;
  options.model = dir;
  options.engine.threads = 1;
  options.engine.memory_bytes = 256LL << 20;
  options.engine.max_seqs = 4;
  options.pairs = 2;
  options.streams = 2;
  options.prompt_tokens = 24;
  options.output_tokens = 20;
  options.shared_tokens = 96;
  return options;
}

// The beginning's last snapshot is made where the second prompt branches off.
TEST(StatesBench, CountsTheReusedTokensOfHybridsAndOfModelsWithoutAttention) {
  for (const char* family : {"qwen3_5", "mamba2"}) {
    const tests::TemporaryDir dir;
    std::ostringstream out;

    EXPECT_EQ(RunStatesBench(out, TinyStates(family, dir.path() / "model")), 0);

    EXPECT_NE(out.str().find("with / without snapshots: decode "), std::string::npos) << out.str();
    EXPECT_NE(out.str().find("the second chat with the same instructions: 96 of 96 tokens"),
              std::string::npos)
        << family << "\n"
        << out.str();
    EXPECT_NE(out.str().find("the third: 96 of 96 tokens, 100.0 %"), std::string::npos)
        << family << "\n"
        << out.str();
    EXPECT_NE(out.str().find("the first prompt again: 128 of 136 tokens"), std::string::npos)
        << family << "\n"
        << out.str();
  }
}

TEST(StatesBench, RefusesAPromptBeyondTheModelsContext) {
  const tests::TemporaryDir dir;
  StatesBenchOptions options = TinyStates("mamba2", dir.path() / "model");
  options.shared_tokens = 256;
  std::ostringstream out;

  EXPECT_THROW(RunStatesBench(out, options), Error);
}

}  // namespace
}  // namespace tandem::bench
