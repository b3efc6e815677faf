#include "bench/models/random_model.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/model/families/family.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

TEST(RandomModel, TheSameSeedWritesTheSameBytes) {
  const tests::TemporaryDir dir;
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig(), .seed = 7}, dir.path() / "a");
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig(), .seed = 7}, dir.path() / "b");
  bench::WriteRandomModel({.config = bench::TinyLlamaConfig(), .seed = 8}, dir.path() / "c");
  const auto bytes = [&](const char* name) {
    return ReadWholeFile(dir.path() / name / "model.safetensors", 1 << 24);
  };

  EXPECT_EQ(bytes("a"), bytes("b"));
  EXPECT_NE(bytes("a"), bytes("c"));
}

TEST(RandomModel, NeverReplacesADirectory) {
  const tests::TemporaryDir dir;

  EXPECT_THROW(bench::WriteRandomModel({.config = bench::TinyLlamaConfig()}, dir.path()), Error);
}

TEST(RandomModel, ATokenizerNamesEveryByteOnce) {
  const tests::TemporaryDir dir;
  bench::WriteRandomModel({.config = bench::TinyMiniGptConfig(), .with_tokenizer = true},
                          dir.path() / "m");

  const auto json =
      nlohmann::json::parse(ModelDir::Open(dir.path() / "m").ReadText("tokenizer.json").value());

  const auto& vocabulary = json.at("model").at("vocab");
  EXPECT_EQ(vocabulary.size(), 256u);
  EXPECT_EQ(vocabulary.at("A"), 65);
  EXPECT_EQ(vocabulary.at("\u0120"), 32) << "GPT-2 writes a space so";
  EXPECT_EQ(vocabulary.at("\u010a"), 10);
  EXPECT_EQ(vocabulary.at("\u0143"), 173) << "the last byte without a character of its own";
  EXPECT_EQ(vocabulary.at("\u00ff"), 255);
}

TEST(RandomModel, LogitsOfDifferentContextsDiffer) {
  const tests::TemporaryDir dir;
  for (const FamilySpec* family : Families()) {
    const ModelConfig config = bench::TinyModelConfig(family->name);
    const auto model = dir.path() / config.family;
    bench::WriteRandomModel({.config = config}, model);
    tests::ModelHarness harness(model, {});

    const auto a = harness.Prefill({1, 2, 3, 4}, 0), b = harness.Prefill({5, 2, 3, 4}, 0);

    const std::span<const float> last_a(a.data() + 3 * 272, 272), last_b(b.data() + 3 * 272, 272);
    double difference = 0;
    for (size_t i = 0; i < last_a.size(); ++i) difference += std::abs(last_a[i] - last_b[i]);
    EXPECT_GT(difference / 272, 0.05 * config.logit_multiplier) << config.family;
  }
}

}  // namespace
}  // namespace tandem::engine
