// Generate without memory, at every allocation of the caller and of the engine.

#include "engine/generate.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/formats/model_dir.h"
#include "tests/out_of_memory/failing_new.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

std::vector<TokenId> TokensOf(Engine& engine) {
  GenerationRequest request;
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  request.sampling.temperature = 0;
  request.stop.max_new_tokens = 4;
  request.stop.ignore_end_tokens = true;
  std::vector<TokenId> tokens;
  Generate(engine, std::move(request), [&](const TextDelta& delta) {
    tokens.insert(tokens.end(), delta.token_ids.begin(), delta.token_ids.end());
  });
  return tokens;
}

TEST(GenerateOutOfMemory, AFailedAllocationEndsTheRequestOrLeavesItsAnswerUnchanged) {
  const tests::TemporaryDir dir;
  bench::RandomModelSpec spec;
  spec.config = bench::TinyLlamaConfig();
  bench::WriteRandomModel(spec, dir.path() / "model");
  EngineOptions options;
  options.threads = 1;
  options.max_seqs = 4;
  options.kv_cache_bytes = 8 << 20;
  Engine engine(OpenModel(ModelDir::Open(dir.path() / "model"), options, ""), options);
  const std::vector<TokenId> expected = TokensOf(engine);
  ASSERT_EQ(expected.size(), 4u);

  int64_t k = 0;
  int n_errors = 0;
  for (bool has_failed = true; has_failed && k < 5000;) {
    {
      const tests::FailAllocation failure(++k);
      try {
        ASSERT_EQ(TokensOf(engine), expected) << "allocation " << k;
      } catch (const std::bad_alloc&) {
        ++n_errors;
      } catch (const Error&) {
        ++n_errors;
      }
      has_failed = failure.has_failed();
    }
    ASSERT_EQ(TokensOf(engine), expected) << "behind allocation " << k;
  }

  EXPECT_GT(k, 20);
  EXPECT_GT(n_errors, 0);
}

}  // namespace
}  // namespace tandem::engine
