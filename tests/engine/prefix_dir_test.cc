// Cached prefixes on disk (EngineOptions::prefix_dir): they outlive an engine, and change no bit.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "bench/models/random_model.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/kv/block_table.h"
#include "engine/model/model.h"
#include "tests/support/engine_client.h"
#include "tests/support/full_disk.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLongest = 192;

class PrefixDirTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    Open(GetParam());
    options_.prefix_dir = dir_.path() / "prefixes";
  }
  void Open(const std::string& family) {
    bench::RandomModelSpec spec;
    spec.config = bench::TinyModelConfig(family);
    spec.seed = 3;
    spec.stored = DType::kF32;
    spec.with_tokenizer = true;
    if (!fs::exists(dir_.path() / family)) bench::WriteRandomModel(spec, dir_.path() / family);
    options_.threads = 1;
    options_.max_seqs = 4;
    options_.max_model_len = kLongest;
    options_.prefill_chunk_tokens = 64;
    model_ = OpenModel(ModelDir::Open(dir_.path() / family), options_, "");
  }
  static GenerationRequest Request(int variant = 0, uint64_t tenant = 0) {
    GenerationRequest request;
    for (int i = 0; i < 130; ++i) request.prompt.push_back((7 * i + 31 * variant) % 250);
    request.stop.max_new_tokens = 12;
    request.stop.ignore_end_tokens = true;
    request.sampling.temperature = 0.8f;
    request.sampling.seed = 5;
    request.top_logprobs = 1;
    request.prefix_tenant = tenant;
    return request;
  }
  tests::Answer Run(const GenerationRequest& request) {
    Engine engine(model_, options_);
    tests::Answer answer = tests::Run(engine, request);
    stats_ = engine.stats();
    return answer;
  }
  static int64_t Cached(const tests::Answer& answer) {
    return answer.only().finished->usage.cached_tokens;
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    if (!fs::exists(options_.prefix_dir)) return files;
    for (const auto& entry : fs::recursive_directory_iterator(options_.prefix_dir)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    return files;
  }

  tests::TemporaryDir dir_;
  EngineOptions options_;
  LoadedModel model_;
  EngineStats stats_;
};

TEST_P(PrefixDirTest, APrefixOutlivesTheEngineAndChangesNoBit) {
  const tests::Answer first = Run(Request());
  EXPECT_EQ(Cached(first), 0);
  EXPECT_FALSE(Files().empty());

  const tests::Answer second = Run(Request());

  EXPECT_EQ(Bits(first), Bits(second));
  EXPECT_GE(Cached(second), 112);
  EXPECT_GT(stats_.disk_blocks_read_total, 0);
  EXPECT_GT(stats_.disk_blocks, 0);
  // Another tenant's chain has other keys, and another type of keys another directory.
  EXPECT_EQ(Cached(Run(Request(0, 9))), 0);
  options_.kv_format = KvFormat::kInt8;
  Open(GetParam());
  EXPECT_EQ(Cached(Run(Request())), 0);
  EXPECT_GE(Cached(Run(Request())), 112);
}

TEST_P(PrefixDirTest, DamagedFilesAreComputedAgain) {
  const tests::Answer first = Run(Request());
  const std::vector<fs::path> files = Files();
  ASSERT_GT(files.size(), 4u);
  for (size_t i = 0; i < files.size(); i += 2) {
    std::fstream file(files[i], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(100);
    file.write("\x5a\x5a\x5a\x5a", 4);
  }
  EXPECT_EQ(Bits(first), Bits(Run(Request())));
  EXPECT_EQ(Bits(first), Bits(Run(Request())));
}

TEST_P(PrefixDirTest, AFullDiskAndAnUnusableDirectoryCostTheCacheOnly) {
  options_.prefix_dir.clear();
  const tests::Answer plain = Run(Request());
  options_.prefix_dir = dir_.path() / "prefixes";
  {
    const tests::FullDisk full;
    EXPECT_EQ(Bits(plain), Bits(Run(Request())));
  }
  EXPECT_TRUE(Files().empty());
  options_.prefix_dir = dir_.path() / "file" / "below";
  WriteFileAtomically(dir_.path() / "file", "not a directory");
  EXPECT_EQ(Bits(plain), Bits(Run(Request())));
}

// Memory for one text: each one drives the others out, and comes back from the disk.
TEST_P(PrefixDirTest, PrefixesSpillToDiskUnderPressure) {
  const KvCache::Shape shape = ModelRunner::WindowedKvShape(*model_.model, kLongest);
  options_.kv_cache_bytes =
      shape.block_bytes() * (MostBlocksOfSequence(shape.windows, kLongest, 64) + 2);
  options_.max_seqs = 1;
  Engine engine(model_, options_);
  std::vector<std::string> bits;
  for (int variant = 0; variant < 4; ++variant) {
    bits.push_back(Bits(tests::Run(engine, Request(variant))));
  }
  // The writer may be behind at first.
  size_t n_cached = 0;
  for (int round = 0; round < 100 && n_cached < bits.size(); ++round) {
    n_cached = 0;
    for (int variant = 0; variant < 4; ++variant) {
      const tests::Answer again = tests::Run(engine, Request(variant));
      ASSERT_EQ(bits[static_cast<size_t>(variant)], Bits(again));
      n_cached += Cached(again) > 0 ? 1 : 0;
    }
  }
  EXPECT_EQ(n_cached, bits.size());
  EXPECT_GT(engine.stats().disk_blocks_read_total, 0);
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixDirTest, testing::Values("llama", "gemma2", "llama4"),
                         [](const auto& which) { return which.param; });

// The longest text selects LongRoPE's factors, which change the keys of every text.
TEST(PrefixDirOfLongRope, OtherFactorsComputeTheirOwnKeys) {
  const tests::TemporaryDir dir;
  bench::RandomModelSpec spec;
  spec.config = bench::TinyModelConfig("phi3");
  spec.config.rope_scaling.original_max_positions = 200;
  spec.with_tokenizer = true;
  bench::WriteRandomModel(spec, dir.path() / "model");
  GenerationRequest request;
  for (int i = 0; i < 100; ++i) request.prompt.push_back(7 * i % 250);
  request.stop.max_new_tokens = 4;
  request.stop.ignore_end_tokens = true;
  request.top_logprobs = 1;
  EngineOptions options;
  options.threads = 1;
  options.max_seqs = 2;
  const auto run = [&](int64_t longest, const char* prefixes) {
    options.max_model_len = longest;
    options.prefix_dir = dir.path() / prefixes;
    Engine engine(OpenModel(ModelDir::Open(dir.path() / "model"), options, ""), options);
    return tests::Run(engine, request);
  };
  const tests::Answer of_long = run(256, "a");
  run(200, "b");
  const tests::Answer after_short = run(256, "b");
  EXPECT_EQ(after_short.only().finished->usage.cached_tokens, 0);
  EXPECT_EQ(Bits(of_long), Bits(after_short));
}

class PrefixDirOfStatesTest : public PrefixDirTest {};

TEST_P(PrefixDirOfStatesTest, ModelsWithRecurrentLayersDoWithout) {
  const tests::Answer first = Run(Request());
  EXPECT_TRUE(Files().empty());
  EXPECT_EQ(Bits(first), Bits(Run(Request())));
}

INSTANTIATE_TEST_SUITE_P(Families, PrefixDirOfStatesTest, testing::Values("mamba2", "falcon_h1"),
                         [](const auto& which) { return which.param; });

}  // namespace
}  // namespace tandem::engine
