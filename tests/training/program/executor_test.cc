#include "training/program/executor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

using engine::DType;

// Random samples for packed rows.
std::vector<std::vector<TokenId>> Samples(std::span<const size_t> lengths, int64_t vocab) {
  std::vector<std::vector<TokenId>> samples;
  uint32_t state = 99;
  for (const size_t length : lengths) {
    std::vector<TokenId> tokens(length);
    for (TokenId& token : tokens) {
      state = state * 1664525u + 1013904223u;
      token = static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(vocab));
    }
    samples.push_back(tokens);
  }
  return samples;
}

// One sample per segment; every token but the last predicts the next one.
MicroBatch BatchOf(std::span<const std::vector<TokenId>> samples, uint64_t first_number,
                   int64_t padding) {
  MicroBatch batch;
  for (size_t s = 0; s < samples.size(); ++s) {
    PackedRow row;
    for (size_t i = 0; i + 1 < samples[s].size(); ++i) {
      row.tokens.push_back(samples[s][i]);
      row.positions.push_back(static_cast<int32_t>(i));
      row.targets.push_back(samples[s][i + 1]);
      row.weights.push_back(1);
      row.samples.push_back(static_cast<int64_t>(first_number + s));
    }
    row.segment_lengths.push_back(static_cast<int64_t>(row.tokens.size()));
    batch.Append(row);
  }
  if (padding > 0) batch.Append(PaddingRow(padding, 0));
  return batch;
}

struct Model {
  std::string_view family;
  engine::ModelConfig config;
};

std::vector<Model> Models() {
  std::vector<Model> models;
  for (const engine::FamilySpec* family : engine::Families()) {
    models.push_back({family->name, bench::TinyModelConfig(family->name)});
  }
  return models;
}

std::vector<Model> ModelsWithoutDropout() {
  std::vector<Model> models = Models();
  for (Model& model : models) model.config.dropout = model.config.embedding_dropout = 0;
  return models;
}

// Without rope the bias changes no probability; its gradient is rounding noise.
bool IsKeyBias(const std::string& name) { return name.find("key.bias") != std::string::npos; }

class Fixture {
 public:
  Fixture(const Model& model, DType dtype, int64_t rows, std::vector<bool> trained = {},
          int n_threads = 1)
      : pool_(n_threads), ops_(engine::Kernels(), pool_) {
    TrainerOptions options;
    options.row_length = rows;
    options.max_segments = 8;
    options.schedule = {
        .learning_rate = 1e-3, .kind = ScheduleKind::kConstant, .schedule_steps = 10};
    options.trained = std::move(trained);
    options.dropout_seed = 5;
    trainer = std::make_unique<Trainer>(engine::FindFamilyByName(model.family), model.config, dtype,
                                        options, ops_);
    trainer->parameters().InitFresh(3, 0.1, model.config.n_layers);
    trainer->MastersChanged();
  }

  std::vector<float> Gradient(size_t i) const {
    const ParameterStore& parameters = trainer->parameters();
    const float* data = parameters.gradients()[i];
    const engine::WeightSpec& spec = parameters.specs()[i];
    return data == nullptr ? std::vector<float>()
                           : std::vector<float>(data, data + spec.n * spec.k);
  }
  size_t size() const { return trainer->parameters().size(); }

 private:
  ThreadPool pool_;
  engine::OpsContext ops_;

 public:
  std::unique_ptr<Trainer> trainer;
};

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr size_t kLengths[] = {21, 8, 38};  // 20 + 7 + 37 = 64 places

TEST(Executor, PackedSegmentsHaveTheLossesOfSamplesAlone) {
  for (const Model& model : Models()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto samples = Samples(kLengths, model.config.vocab_size);
      const MicroBatch packed = BatchOf(samples, 0, 0);
      Fixture together(model, dtype, 64);
      std::vector<float> packed_logprobs(64);
      together.trainer->executor().Evaluate(packed.View(0), packed_logprobs.data());

      size_t row = 0;
      for (const auto& sample : samples) {
        const auto rows = static_cast<int64_t>(sample.size()) - 1;
        Fixture alone(model, dtype, rows);
        std::vector<float> logprobs(static_cast<size_t>(rows));
        const MicroBatch single = BatchOf({&sample, 1}, 0, 0);
        alone.trainer->executor().Evaluate(single.View(0), logprobs.data());

        const std::vector<float> mine(packed_logprobs.begin() + static_cast<long>(row),
                                      packed_logprobs.begin() + static_cast<long>(row) + rows);
        EXPECT_TRUE(SameBits(mine, logprobs)) << model.family;
        row += static_cast<size_t>(rows);
      }
    }
  }
}

TEST(Executor, AccumulationEqualsTheBiggerBatch) {
  for (const Model& model : ModelsWithoutDropout()) {
    const auto samples = Samples(kLengths, model.config.vocab_size);
    const MicroBatch whole = BatchOf(samples, 0, 0);
    Fixture big(model, DType::kF32, 64);
    const StepResult at_once = big.trainer->Gradients({&whole, 1});

    const std::vector<MicroBatch> parts = {BatchOf({samples.data(), 2}, 0, 37 - 27),
                                           BatchOf({samples.data() + 2, 1}, 2, 0)};
    Fixture small(model, DType::kF32, 37);
    const StepResult accumulated = small.trainer->Gradients(parts);

    EXPECT_EQ(accumulated.total_weights, at_once.total_weights);
    EXPECT_NEAR(accumulated.loss, at_once.loss, 1e-6 * at_once.loss);
    for (size_t i = 0; i < big.size(); ++i) {
      // f32 sums in a different order.
      const auto& name = big.trainer->parameters().specs()[i].name;
      if (IsKeyBias(name)) continue;
      EXPECT_LT(RelativeDifference(small.Gradient(i), big.Gradient(i)), 1e-5) << name;
    }
  }
}

TEST(Executor, PaddingChangesNoGradient) {
  for (const Model& model : ModelsWithoutDropout()) {
    const auto samples = Samples(kLengths, model.config.vocab_size);
    const MicroBatch plain = BatchOf(samples, 0, 0);
    const MicroBatch padded = BatchOf(samples, 0, 32);
    Fixture a(model, DType::kF32, 64);
    Fixture b(model, DType::kF32, 96);

    const double loss = a.trainer->Gradients({&plain, 1}).loss;
    EXPECT_EQ(b.trainer->Gradients({&padded, 1}).loss, loss);
    for (size_t i = 0; i < a.size(); ++i) {
      const auto& name = a.trainer->parameters().specs()[i].name;
      if (IsKeyBias(name)) continue;
      EXPECT_LT(RelativeDifference(b.Gradient(i), a.Gradient(i)), 1e-5) << name;
    }
  }
}

TEST(Executor, FrozenWeightsLeaveTheOtherGradientsAsTheyWere) {
  for (const Model& model : Models()) {
    const auto samples = Samples(kLengths, model.config.vocab_size);
    const MicroBatch batch = BatchOf(samples, 0, 0);
    Fixture all(model, DType::kBF16, 64);
    all.trainer->Gradients({&batch, 1});

    for (const size_t keep_modulo : {2u, 3u, 7u}) {
      std::vector<bool> trained(all.size(), false);
      for (size_t i = 0; i < trained.size(); ++i) trained[i] = i % keep_modulo == 1;
      Fixture some(model, DType::kBF16, 64, trained);
      some.trainer->Gradients({&batch, 1});

      for (size_t i = 0; i < all.size(); ++i) {
        if (trained[i]) {
          EXPECT_TRUE(SameBits(some.Gradient(i), all.Gradient(i)))
              << all.trainer->parameters().specs()[i].name;
        } else {
          EXPECT_TRUE(some.Gradient(i).empty());
        }
      }
    }
  }
}

TEST(Executor, AFrozenWeightDoesNotMove) {
  const Model model = Models()[0];
  const auto samples = Samples(kLengths, model.config.vocab_size);
  const MicroBatch batch = BatchOf(samples, 0, 0);
  const size_t n = engine::FindFamilyByName("llama").list_weights(model.config).size();
  std::vector<bool> trained(n, false);
  trained[2] = true;
  Fixture fixture(model, DType::kBF16, 64, trained);
  std::vector<std::vector<float>> before;
  for (size_t i = 0; i < n; ++i) before.push_back(fixture.trainer->parameters().Master(i));

  fixture.trainer->Step({&batch, 1});

  for (size_t i = 0; i < n; ++i) {
    EXPECT_EQ(SameBits(fixture.trainer->parameters().Master(i), before[i]), !trained[i]);
  }
}

TEST(Executor, ThreadCountChangesNoBit) {
  for (Model model : Models()) {
    model.config.dropout = 0.1f;
    const auto samples = Samples(kLengths, model.config.vocab_size);
    const MicroBatch batch = BatchOf(samples, 0, 0);
    Fixture one(model, DType::kBF16, 64, {}, 1);
    Fixture three(model, DType::kBF16, 64, {}, 3);

    EXPECT_EQ(one.trainer->Gradients({&batch, 1}).loss, three.trainer->Gradients({&batch, 1}).loss);
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(SameBits(one.Gradient(i), three.Gradient(i)));
    }
  }
}

TEST(Executor, DropoutDoesNotDependOnPacking) {
  Model model = {"minigpt", bench::TinyMiniGptConfig()};
  model.config.dropout = 0.3f;
  const auto samples = Samples(kLengths, model.config.vocab_size);
  const MicroBatch together = BatchOf(samples, 0, 0);
  Fixture packed(model, DType::kF32, 64);
  const double loss = packed.trainer->Gradients({&together, 1}).loss;

  const std::vector<MicroBatch> parts = {BatchOf({samples.data(), 2}, 0, 37 - 27),
                                         BatchOf({samples.data() + 2, 1}, 2, 0)};
  Fixture split(model, DType::kF32, 37);

  EXPECT_NEAR(split.trainer->Gradients(parts).loss, loss, 1e-6 * loss);
  EXPECT_NE(split.trainer->Evaluate(parts).loss, loss);
}

TEST(Trainer, ABatchWithNothingToTrainCountsButMovesNothing) {
  const Model model = Models()[0];
  Fixture fixture(model, DType::kBF16, 64);
  MicroBatch batch;
  batch.Append(PaddingRow(64, 0));
  const std::vector<float> before = fixture.trainer->parameters().Master(1);

  const StepResult result = fixture.trainer->Step({&batch, 1});

  EXPECT_FALSE(result.updated);
  EXPECT_EQ(result.total_weights, 0);
  EXPECT_TRUE(SameBits(fixture.trainer->parameters().Master(1), before));
}

TEST(Trainer, ANanLossIsSaidAndLeavesTheWeights) {
  const Model model = Models()[0];
  const auto samples = Samples(kLengths, model.config.vocab_size);
  const MicroBatch batch = BatchOf(samples, 0, 0);
  Fixture fixture(model, DType::kF32, 64);
  ParameterStore& parameters = fixture.trainer->parameters();
  std::vector<float> poisoned = parameters.Master(1);
  poisoned[0] = std::nanf("");
  parameters.SetMaster(1, poisoned);
  fixture.trainer->MastersChanged();
  const std::vector<float> before = parameters.Master(2);

  const StepResult step = fixture.trainer->Step({&batch, 1});
  EXPECT_FALSE(step.finite);
  EXPECT_FALSE(step.updated);
  EXPECT_TRUE(SameBits(parameters.Master(2), before));
}

}  // namespace
}  // namespace tandem::training
