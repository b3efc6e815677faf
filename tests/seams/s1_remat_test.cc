// Seam S1 under every policy of rematerialisation. Training steps recompute activations, including
// adapter dropout. Packed segments then have the same logits, bit for bit, as serving computes with
// the exported weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/models/random_model.h"
#include "engine/io/json.h"
#include "engine/kernels/kernels.h"
#include "tests/seams/packed_segments.h"
#include "tests/support/adapters.h"
#include "tests/support/emulated.h"
#include "tests/support/families.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_dir.h"
#include "training/lora/lora.h"
#include "training/program/remat_options.h"
#include "training/setup/model_files.h"
#include "training/step/trainer.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using engine::DType;
using training::RematOptions;
using training::RematPolicy;
using training::Trainer;

class RematTrainEqualsServe : public testing::TestWithParam<std::string> {
 protected:
  RematTrainEqualsServe() : pool_(2), ops_(engine::Kernels(), pool_) {
    bench::RandomModelSpec model;
    model.config = bench::TinyModelConfig(GetParam());
    model.config.dropout = 0.1f;
    bench::WriteRandomModel(model, base_);
    tests::WriteRandomAdapter(base_, 5, 3, dir_ / "before");
    segments_ = tests::Segments(model.config.vocab_size);
    batch_ = tests::Pack(segments_);
    batch_.targets.assign(batch_.targets.size(), 1);
    batch_.weights.assign(batch_.weights.size(), 1);
  }

  training::TrainerOptions Options(const RematOptions& remat) const {
    training::TrainerOptions options;
    options.row_length = static_cast<int64_t>(batch_.tokens.size());
    options.max_segments = 3;
    options.remat = remat;
    options.lora_dropout = 0.3f;
    options.schedule = {
        .learning_rate = 1e-2, .kind = training::ScheduleKind::kConstant, .schedule_steps = 2};
    return options;
  }

  std::unique_ptr<Trainer> OfAllWeights(DType dtype, const RematOptions& remat) {
    const auto dir = engine::ModelDir::Open(base_);
    const auto json = engine::ParseUntrustedJson(*dir.ReadText("config.json"), "base");
    const engine::FamilySpec& family = engine::FindFamily(json, "base");
    auto trainer = std::make_unique<Trainer>(family, family.parse_config(json, "base"), dtype,
                                             Options(remat), ops_);
    trainer->parameters().LoadFrom(dir);
    return trainer;
  }

  std::unique_ptr<Trainer> OfAnAdapter(DType dtype, const RematOptions& remat) {
    const auto base = engine::Model::Load(engine::ModelDir::Open(base_), {.dtype = dtype}, ops_);
    const auto before = engine::LoraAdapter::Open(dir_ / "before");
    auto trainer = std::make_unique<Trainer>(
        base, training::LoraTargetsOf(before, base->family(), base->config()), Options(remat),
        ops_);
    const std::string source = (dir_ / "before/adapter_model.safetensors").string();
    trainer->parameters().LoadFrom(engine::SafetensorsFile::Open(source), source);
    return trainer;
  }

  // After two steps.
  std::vector<float> Trained(Trainer& trainer) {
    trainer.MastersChanged();
    for (int step = 0; step < 2; ++step) EXPECT_TRUE(trainer.Step({&batch_, 1}).updated);
    std::vector<float> logits(batch_.tokens.size() *
                              static_cast<size_t>(trainer.config().vocab_size));
    trainer.executor().ForwardLogits(batch_.View(0), logits.data());
    return logits;
  }

  std::vector<float> Served(const Trainer& trainer, DType dtype) {
    const fs::path after = dir_ / "after";
    fs::remove_all(after);
    fs::create_directories(after);
    const std::string config = engine::ReadWholeFile(base_ / "config.json", 1 << 20);
    if (trainer.base() == nullptr) tests::Export(trainer.parameters(), config, after);
    tests::ModelHarness harness(trainer.base() == nullptr ? after : base_, {.dtype = dtype});
    if (trainer.base() != nullptr) {
      harness.UseAdapter(harness.LoadAdapter(training::ExportAdapter(
          engine::ReadWholeFile(dir_ / "before/adapter_config.json", 1 << 20), {},
          trainer.parameters(), after)));
    }
    std::vector<float> logits;
    for (const auto& tokens : segments_) {
      const std::vector<float> part = harness.Prefill(tokens, 7);
      logits.insert(logits.end(), part.begin(), part.end());
    }
    return logits;
  }

  tests::TemporaryDir dir_;
  const fs::path base_ = dir_ / "base";
  ThreadPool pool_;
  engine::OpsContext ops_;
  std::vector<std::vector<TokenId>> segments_;
  training::MicroBatch batch_;
};

TEST_P(RematTrainEqualsServe, LogitsOfPackedSegmentsAreBitwiseThoseOfServing) {
  const std::vector<std::string> families = tests::FamilyNames();
  const auto family = static_cast<size_t>(std::find(families.begin(), families.end(), GetParam()) -
                                          families.begin());
  for (const bool adapted : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const size_t form = (adapted ? 2 : 0) + (dtype == DType::kBF16 ? 1 : 0);
      if (tests::IsEmulated() && family % 4 != form) continue;
      const auto make = [&](const RematOptions& remat) {
        return adapted ? OfAnAdapter(dtype, remat) : OfAllWeights(dtype, remat);
      };
      const auto plain = make({});
      const std::vector<float> trained = Trained(*plain);
      const std::vector<float> served = Served(*plain, dtype);
      ASSERT_EQ(trained.size(), served.size());
      ASSERT_EQ(std::memcmp(trained.data(), served.data(), served.size() * sizeof(float)), 0);

      const int64_t most = plain->program().arena_bytes;
      const int64_t least = make({.policy = RematPolicy::kFull})->program().arena_bytes;
      for (const std::string_view name : training::RematPolicyNames()) {
        const RematOptions remat{.policy = *training::FindRematPolicy(name),
                                 .max_bytes = (most + least) / 2};
        const auto trainer = make(remat);
        const std::vector<float> logits = Trained(*trainer);
        EXPECT_EQ(std::memcmp(logits.data(), served.data(), served.size() * sizeof(float)), 0)
            << name << (adapted ? " adapter " : " ") << engine::DTypeName(dtype);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllFamilies, RematTrainEqualsServe,
                         testing::ValuesIn(tests::FamilyNames()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace tandem
