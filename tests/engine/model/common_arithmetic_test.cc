// Whole models: every table of the common arithmetic gives the same logits, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "engine/kernels/arithmetic.h"
#include "engine/kernels/kernels.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"

namespace tandem::engine {
namespace {

// Attention of every kind, experts, and recurrences with and without attention.
constexpr const char* kModels[] = {
    "llama3-tiny-rope-scaling", "gpt2-tiny",    "gemma2-tiny", "deepseek_v2-tiny",
    "qwen3_moe-tiny",           "gpt_oss-tiny", "mamba2-tiny", "qwen3_next-tiny"};

uint64_t DigestOfLogits(const tests::ModelHarness::Options& options) {
  uint64_t digest = 14695981039346656037u;  // FNV-1a of the bits
  for (const char* name : kModels) {
    const tests::Golden golden = tests::LoadGolden(name);
    tests::ModelHarness harness(golden.dir, options);
    // Two steps, so that the second reads cached keys and states.
    const std::vector<TokenId>& tokens = golden.sequences[0].input_ids;
    for (const float logit : harness.Prefill(tokens, tokens.size() / 2 + 1)) {
      uint32_t bits = 0;
      std::memcpy(&bits, &logit, sizeof(bits));
      digest = (digest ^ bits) * 1099511628211u;
    }
  }
  return digest;
}

TEST(CommonArithmeticOfModels, LogitsHaveTheSameBitsOnEveryTable) {
  const tests::ModelHarness::Options types[] = {
      {.dtype = DType::kF32},
      {.dtype = DType::kBF16},
      {.dtype = DType::kBF16, .block = BlockFormat::kInt8},
      {.dtype = DType::kBF16, .block = BlockFormat::kInt4},
  };
  for (const tests::ModelHarness::Options& type : types) {
    std::optional<uint64_t> first;
    for (const KernelTable* table : RunnableKernelTables()) {
      if (ArithmeticOf(*table) != kCommonArithmetic) continue;
      tests::ModelHarness::Options options = type;
      options.kernels = table;
      const uint64_t digest = DigestOfLogits(options);
      EXPECT_EQ(digest, first.value_or(digest)) << table->key;
      first = first.value_or(digest);
    }
  }
}

}  // namespace
}  // namespace tandem::engine
