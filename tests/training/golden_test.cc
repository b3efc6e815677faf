// Loss, every gradient and three AdamW steps against an independent f64 reference
// (tests/golden/README.md has the tolerances), with every table of kernels this machine can run.

#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/formats/model_dir.h"
#include "engine/io/json.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "training/lora/lora.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

using tests::Golden;

// The golden's padded batch as packed segments without padding, as our packer makes them.
MicroBatch BatchOf(const Golden& golden, int64_t* rows) {
  MicroBatch batch;
  const tests::GoldenTraining& t = golden.training;
  for (size_t s = 0; s < t.input_ids.size(); ++s) {
    const auto length =
        static_cast<size_t>(std::count(t.attention_mask[s].begin(), t.attention_mask[s].end(), 1));
    batch.segments.push_back(
        {static_cast<int64_t>(batch.tokens.size()), static_cast<int64_t>(length)});
    for (size_t i = 0; i < length; ++i) {
      const bool counted = i + 1 < length && t.labels[s][i + 1] != -100;
      batch.tokens.push_back(t.input_ids[s][i]);
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.targets.push_back(counted ? t.labels[s][i + 1] : -1);
      batch.weights.push_back(counted ? 1.0f : 0.0f);
      batch.sources.push_back({s, static_cast<uint32_t>(i)});
    }
  }
  *rows = static_cast<int64_t>(batch.tokens.size());
  return batch;
}

class TrainingGolden : public testing::TestWithParam<std::string> {
 protected:
  void ForEachTable(engine::DType dtype,
                    const std::function<void(Trainer&, const Golden&, const MicroBatch&)>& check) {
    const Golden golden = tests::LoadGolden(GetParam());
    int64_t rows = 0;
    const MicroBatch batch = BatchOf(golden, &rows);
    ASSERT_EQ(batch.weight(), static_cast<double>(golden.training.counted_label_tokens));

    const engine::ModelDir dir = engine::ModelDir::Open(golden.dir);
    const nlohmann::ordered_json json =
        engine::ParseUntrustedJson(*dir.ReadText("config.json"), golden.name);
    const engine::FamilySpec& family = engine::FindFamily(json, golden.name);
    const engine::ModelConfig config = family.parse_config(json, golden.name);

    TrainerOptions options;
    options.dropout = false;
    options.row_length = rows;
    options.max_segments = static_cast<int64_t>(batch.segments.size());
    options.schedule = {
        .learning_rate = 1e-3, .kind = ScheduleKind::kConstant, .schedule_steps = 3};
    for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
      SCOPED_TRACE(table->isa);
      ThreadPool pool(2);
      engine::OpsContext ops(*table, pool);
      if (golden.adapter_dir.empty()) {
        Trainer trainer(family, config, dtype, options, ops);
        trainer.parameters().LoadFrom(dir);
        trainer.MastersChanged();
        check(trainer, golden, batch);
        continue;
      }
      const auto base = engine::Model::Load(dir, {.dtype = dtype}, ops);
      const engine::LoraAdapter adapter = engine::LoraAdapter::Open(golden.adapter_dir);
      Trainer trainer(base, LoraTargetsOf(adapter, family, config), options, ops);
      const auto file = golden.adapter_dir / "adapter_model.safetensors";
      trainer.parameters().LoadFrom(engine::SafetensorsFile::Open(file), file.string());
      trainer.MastersChanged();
      check(trainer, golden, batch);
      ASSERT_EQ(trainer.parameters().size(), adapter.modules().size() * 2);
    }
  }
};

double L2(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

double L2Difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    sum += d * d;
  }
  return std::sqrt(sum);
}

// A golden tensor in our row-major [n, k].
std::vector<float> InOurLayout(const engine::SafetensorsFile& file,
                               const engine::WeightSpec& spec) {
  const std::vector<float> source = tests::GoldenFloats(file, spec.name);
  if (spec.layout == engine::SourceLayout::kOutIn) return source;
  std::vector<float> ours(source.size());
  for (int64_t n = 0; n < spec.n; ++n) {
    for (int64_t k = 0; k < spec.k; ++k) ours[n * spec.k + k] = source[k * spec.n + n];
  }
  return ours;
}

// Every trained tensor differs from the golden by at most `limit` times the golden's norm.
void ExpectGradients(const ParameterStore& parameters, const Golden& golden, double limit,
                     bool check_zeros) {
  const tests::GoldenTraining& t = golden.training;
  const engine::SafetensorsFile gradients = tests::OpenGoldenTensors(golden, "gradients");
  const std::set<std::string> zero(t.zero_gradient_parameters.begin(),
                                   t.zero_gradient_parameters.end());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const engine::WeightSpec& spec = parameters.specs()[i];
    const bool is_zero = zero.contains(spec.name);
    if (is_zero && !check_zeros) continue;
    const std::vector<float> ours(parameters.gradients()[i],
                                  parameters.gradients()[i] + spec.n * spec.k);
    const std::vector<float> theirs = InOurLayout(gradients, spec);
    EXPECT_LE(L2Difference(ours, theirs), is_zero ? 1e-6 * t.gradient_norms[0] : limit * L2(theirs))
        << spec.name;
  }
}

TEST_P(TrainingGolden, LossAndGradientsAreThoseOfTheReference) {
  ForEachTable(engine::DType::kF32,
               [](Trainer& trainer, const Golden& golden, const MicroBatch& batch) {
                 const StepResult result = trainer.Gradients({&batch, 1});

                 const tests::GoldenTraining& t = golden.training;
                 EXPECT_NEAR(result.loss, t.loss, 1e-5 * t.loss);
                 ExpectGradients(trainer.parameters(), golden, 1e-4, true);
               });
}

// A bias of keys does not change a softmax in dimensions without rope. Its gradient there is
// rounding noise, of which Adam makes whole steps.
void LeaveOutSymmetries(const std::vector<float>& gradients, const std::vector<float>& theirs,
                        std::vector<float>& ours) {
  float largest = 0;
  for (const float gradient : gradients) largest = std::max(largest, std::abs(gradient));
  for (size_t i = 0; i < ours.size(); ++i) {
    if (std::abs(gradients[i]) <= 1e-9f * largest) ours[i] = theirs[i];
  }
}

TEST_P(TrainingGolden, ThreeAdamWStepsEndWhereTheReferenceDoes) {
  ForEachTable(
      engine::DType::kF32, [](Trainer& trainer, const Golden& golden, const MicroBatch& batch) {
        const tests::GoldenTraining& t = golden.training;
        ParameterStore& parameters = trainer.parameters();
        std::vector<std::vector<float>> start;
        for (size_t i = 0; i < parameters.size(); ++i) start.push_back(parameters.Master(i));

        for (size_t step = 0; step < 3; ++step) {
          const StepResult result = trainer.Step({&batch, 1});
          EXPECT_NEAR(result.loss, t.losses[step], 1e-4 * t.losses[step]);
          EXPECT_NEAR(result.raw_grad_norm, t.gradient_norms[step], 1e-3 * t.gradient_norms[step]);
        }
        EXPECT_NEAR(trainer.Evaluate({&batch, 1}).loss, t.losses[3], 1e-4 * t.losses[3]);

        const engine::SafetensorsFile after = tests::OpenGoldenTensors(golden, "adamw_3steps");
        const engine::SafetensorsFile gradients = tests::OpenGoldenTensors(golden, "gradients");
        const std::set<std::string> zero(t.zero_gradient_parameters.begin(),
                                         t.zero_gradient_parameters.end());
        for (size_t i = 0; i < parameters.size(); ++i) {
          const engine::WeightSpec& spec = parameters.specs()[i];
          if (zero.contains(spec.name)) continue;  // Adam makes steps of rounding noise
          std::vector<float> ours = parameters.Master(i);
          const std::vector<float> theirs = InOurLayout(after, spec);
          if (!spec.decays) LeaveOutSymmetries(InOurLayout(gradients, spec), theirs, ours);
          EXPECT_LE(L2Difference(ours, theirs), 1e-2 * L2Difference(theirs, start[i])) << spec.name;
        }
      });
}

// Stated for f32. In bf16 every product rounds at 2^-8, so bounds are wider.
TEST_P(TrainingGolden, InBf16LossAndGradientsPointWhereTheReferenceDoes) {
  ForEachTable(engine::DType::kBF16,
               [](Trainer& trainer, const Golden& golden, const MicroBatch& batch) {
                 const StepResult result = trainer.Gradients({&batch, 1});

                 const tests::GoldenTraining& t = golden.training;
                 EXPECT_NEAR(result.loss, t.loss, 1e-2 * t.loss);
                 ExpectGradients(trainer.parameters(), golden, 0.15, false);
               });
}

std::string CaseName(const testing::TestParamInfo<std::string>& instance) {
  std::string name = instance.param;
  std::replace(name.begin(), name.end(), '-', '_');
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(AllModels, TrainingGolden, testing::ValuesIn(tests::GoldenNames()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(AllAdapters, TrainingGolden,
                         testing::ValuesIn(tests::AdapterGoldenNames()), CaseName);

}  // namespace
}  // namespace tandem::training
