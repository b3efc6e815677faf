// Gradients of ranks that share each matrix (tensor parallelism).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>

#include "bench/models/random_model.h"
#include "engine/kernels/kernels.h"
#include "engine/model/families/shared_counts.h"
#include "tests/training/dist/on_ranks.h"
#include "training/data/synthetic_samples.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

// A model on one rank, or on one of those that share its matrices.
class OneTrainer {
 public:
  static constexpr int64_t kLength = 32;

  OneTrainer(const engine::ModelConfig& config, Collectives* ranks, int64_t chunk,
             bool divide_rows = false)
      : pool_(1),
        ops_(engine::Kernels(), pool_),
        trainer_(engine::FindFamilyByName(config.family), config, engine::DType::kF32,
                 Options(ranks, chunk, divide_rows), ops_) {
    trainer_.parameters().InitFresh(1, 0.2, config.n_layers);
    trainer_.MastersChanged();
    const SyntheticSamples samples(kLength + 1, config.vocab_size, 3);
    Packer packer({.row_length = kLength, .max_sequence = kLength, .n_samples = 1},
                  [&](int64_t i) { return samples.Make(i); });
    PackedRow row;
    packer.Next(&row);
    MicroBatch batch;
    batch.Append(row);
    trainer_.Gradients({&batch, 1});
  }

  ParameterStore& parameters() { return trainer_.parameters(); }

 private:
  static TrainerOptions Options(Collectives* ranks, int64_t chunk, bool divide_rows) {
    TrainerOptions options;
    options.row_length = kLength;
    options.ranks = ranks;
    options.remat.seq_chunk = chunk;
    options.divide_rows = divide_rows;
    options.tensor = ranks == nullptr ? 1 : ranks->size_of(Collectives::Group::kTensor);
    return options;
  }

  ThreadPool pool_;
  engine::OpsContext ops_;
  Trainer trainer_;
};

// Whole weights have the same bits of gradients on all ranks.
void ExpectTheSameGradients(Collectives& ranks, ParameterStore& parameters) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters.tensor().weights[i].axis != WeightSplit::Axis::kWhole) continue;
    if (!parameters.trained()[i]) continue;
    const engine::WeightSpec& spec = parameters.specs()[i];
    const std::span mine(parameters.gradients()[i], static_cast<size_t>(spec.n * spec.k));
    std::vector<float> all(mine.size() * static_cast<size_t>(ranks.size()));
    ranks.AllGather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
    for (size_t at = 0; at < all.size(); at += mine.size()) {
      EXPECT_EQ(std::memcmp(all.data() + at, mine.data(), mine.size_bytes()), 0) << spec.name;
    }
  }
}

// The gradients of a family's tiny model on two ranks are parts of those of one.
void ExpectPartsOfGradients(const engine::ModelConfig& config, int64_t chunk,
                            bool divide_rows = false) {
  OneTrainer one(config, nullptr, 0);
  MustWorkOnRanks(2, [&](Collectives& ranks) {
    ranks.Arrange(1, 2);
    OneTrainer part(config, &ranks, chunk, divide_rows);
    ExpectTheSameGradients(ranks, part.parameters());
    const TensorSplit& tensor = part.parameters().tensor();
    for (size_t i = 0; i < part.parameters().size(); ++i) {
      if (!part.parameters().trained()[i]) continue;
      const engine::WeightSpec& spec = part.parameters().specs()[i];
      const engine::WeightSpec& whole_spec = one.parameters().specs()[i];
      const std::span whole(one.parameters().gradients()[i],
                            static_cast<size_t>(whole_spec.n * whole_spec.k));
      const float* mine = part.parameters().gradients()[i];
      float largest = 0;
      for (const float value : whole) largest = std::max(largest, std::abs(value));
      VisitPart(
          tensor.weights[i], tensor.place, spec.n, spec.k,
          [&](int64_t from, int64_t to, int64_t count) {
            for (int64_t e = 0; e < count; ++e) {
              ASSERT_NEAR(mine[to + e], whole[static_cast<size_t>(from + e)], 1e-6 + 1e-3 * largest)
                  << config.family << " " << spec.name;
            }
          });
    }
  });
}

engine::ModelConfig WithTwoKeyHeads(engine::ModelConfig config) {
  for (const engine::SharedCount& shared : engine::SharedCounts(config)) {
    if (*shared.count == 1) *shared.count = 2;
  }
  return config;
}

// The refusal of a family; empty when ranks can share its matrices.
std::string RefusalOf(const engine::ModelConfig& config, bool divide_rows = false) {
  const auto error = ErrorOf([&] {
    RecordOptions options;
    options.rows = options.row_length = OneTrainer::kLength;
    options.tensor.size = 2;
    options.tensor.divides_rows = divide_rows;
    Record(engine::FindFamilyByName(config.family), config, options);
  });
  return error ? error->what() : "";
}

TEST(TensorGradients, ArePartsOfThoseOfOneRankInEveryFamilyThatIsNotRefused) {
  // Norms of all heads together; experts whose results no op combines.
  const std::set<std::string> refused_by_op = {"minimax_m2", "olmo2", "olmo3", "olmoe", "llama4"};
  for (const engine::FamilySpec* family : engine::Families()) {
    const engine::ModelConfig config = WithTwoKeyHeads(bench::TinyModelConfig(family->name));
    const std::string refusal = RefusalOf(config);
    if (refusal.empty()) {
      ExpectPartsOfGradients(config, 0);
      continue;
    }
    EXPECT_TRUE(!engine::PartOfNoCount(config).empty() || refused_by_op.contains(config.family))
        << refusal;
    EXPECT_TRUE(refusal.starts_with("ici_tensor_parallelism: family " + config.family)) << refusal;
  }
}

// The same families, and the same gradients.
TEST(TensorGradients, OfDividedRowsAreTheSame) {
  int compared = 0;
  for (const engine::FamilySpec* family : engine::Families()) {
    const engine::ModelConfig config = WithTwoKeyHeads(bench::TinyModelConfig(family->name));
    const std::string refusal = RefusalOf(config, true);
    EXPECT_EQ(refusal.empty(), RefusalOf(config).empty()) << config.family << ": " << refusal;
    if (!refusal.empty()) continue;
    ExpectPartsOfGradients(config, 0, true);
    ++compared;
  }
  EXPECT_GT(compared, 10);
}

TEST(TensorGradients, OfChunksOfRowsAreTheSame) {
  for (const char* family : {"llama", "qwen3_moe"}) {
    ExpectPartsOfGradients(bench::TinyModelConfig(family), 16);
    ExpectPartsOfGradients(bench::TinyModelConfig(family), 16, true);
  }
}

// The arena of a rank with its part of the rows is smaller, and remat makes it smaller still.
TEST(TensorGradients, DividedRowsNeedLessMemory) {
  const engine::ModelConfig config = bench::TinyModelConfig("llama");
  const auto arena = [&](bool divides_rows, RematPolicy policy) {
    RecordOptions options;
    options.rows = options.row_length = 1024;
    options.tensor = {.rank = 0, .size = 2, .divides_rows = divides_rows};
    options.remat.policy = policy;
    return Record(engine::FindFamilyByName("llama"), config, options).arena_bytes;
  };
  EXPECT_LT(arena(true, RematPolicy::kNone), arena(false, RematPolicy::kNone));
  EXPECT_LT(arena(true, RematPolicy::kFull), arena(true, RematPolicy::kNone));
  EXPECT_LT(arena(true, RematPolicy::kFull), arena(false, RematPolicy::kFull));
}

}  // namespace
}  // namespace tandem::training
