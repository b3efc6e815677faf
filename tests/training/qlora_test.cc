// Adapters on a quantised base: gradients, memory, quantised files, dropout.

#include <gtest/gtest.h>
#include <malloc.h>

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/kernels/kernels.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/golden.h"
#include "tests/support/model_harness.h"
#include "tests/support/random_gguf.h"
#include "tests/support/temporary_dir.h"
#include "training/lora/lora.h"
#include "training/setup/lora_base.h"
#include "training/setup/model_files.h"
#include "training/step/trainer.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;
using engine::BlockFormat;
using engine::DType;

// Two segments in which each token predicts the next one.
MicroBatch Batch(int64_t vocab, int64_t rows) {
  MicroBatch batch;
  uint32_t state = 7;
  for (int64_t s = 0; s < 2; ++s) {
    PackedRow row;
    const int64_t length = s == 0 ? rows / 3 : rows - rows / 3;
    for (int64_t i = 0; i < length; ++i) {
      state = state * 1664525u + 1013904223u;
      row.tokens.push_back(static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(vocab)));
      row.positions.push_back(static_cast<int32_t>(i));
      row.targets.push_back(static_cast<TokenId>((state >> 16) % static_cast<uint32_t>(vocab)));
      row.weights.push_back(1);
      row.samples.push_back(s);
    }
    row.segment_lengths.push_back(length);
    batch.Append(row);
  }
  return batch;
}

// An adapter of every linear layer, with large values in A and B.
class AdapterOf {
 public:
  AdapterOf(std::shared_ptr<const engine::Model> base, engine::OpsContext& ops, int64_t rows,
            float dropout = 0, uint64_t dropout_seed = 5) {
    LoraOptions lora;
    lora.rank = 5;
    lora.alpha = 5;
    TrainerOptions options;
    options.row_length = rows;
    options.max_segments = 2;
    options.dropout = dropout > 0;  // the model's own dropout draws other masks in other programs
    options.lora_dropout = dropout;
    options.dropout_seed = dropout_seed;
    options.schedule = {
        .learning_rate = 1e-2, .kind = ScheduleKind::kConstant, .schedule_steps = 2};
    auto targets = ChooseLoraTargets(lora, base->family(), base->config());
    trainer = std::make_unique<Trainer>(std::move(base), std::move(targets), options, ops);
    ParameterStore& parameters = trainer->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      engine::WeightSpec spec = parameters.specs()[i];
      const bool is_b = spec.name.ends_with(".lora_B.weight");
      if (is_b) spec.name += "-as-a";  // a B of zeros would hide the gradients of A
      std::vector<float> values = InitialLora(spec, LoraInit::kKaimingUniform, 3);
      if (is_b) {
        for (float& value : values) value *= 0.3f;
      }
      parameters.SetMaster(i, values);
    }
    trainer->MastersChanged();
  }

  std::vector<float> Gradient(size_t i) const {
    const engine::WeightSpec& spec = trainer->parameters().specs()[i];
    const float* data = trainer->parameters().gradients()[i];
    return {data, data + spec.n * spec.k};
  }
  std::vector<float> Logits(const MicroBatch& batch) const {
    std::vector<float> logits(batch.tokens.size() *
                              static_cast<size_t>(trainer->config().vocab_size));
    trainer->executor().ForwardLogits(batch.View(0), logits.data());
    return logits;
  }

  std::unique_ptr<Trainer> trainer;
};

// Writes the model with its weights' values after quantisation.
void WriteUnpacked(const engine::Model& model, const fs::path& from, const fs::path& to) {
  fs::create_directories(to);
  fs::copy_file(from / "config.json", to / "config.json");
  std::vector<std::vector<float>> values;
  std::vector<engine::NamedTensor> tensors;
  for (const engine::Weight& weight : model.weights()) {
    const engine::WeightSpec& spec = *weight.spec;
    std::vector<float> rows(static_cast<size_t>(spec.n * spec.k));
    if (spec.kind == engine::WeightKind::kVector) {
      for (size_t i = 0; i < rows.size(); ++i) rows[i] = weight.vector[i] - spec.offset;
    } else {
      engine::UnpackPanels(weight.panels, rows.data());
    }
    std::vector<float>& source = values.emplace_back(rows.size());
    for (int64_t n = 0; n < spec.n; ++n) {
      for (int64_t k = 0; k < spec.k; ++k) {
        const bool out_in = spec.layout == engine::SourceLayout::kOutIn;
        source[static_cast<size_t>(out_in ? n * spec.k + k : k * spec.n + n)] =
            rows[static_cast<size_t>(n * spec.k + k)];
      }
    }
    tensors.push_back(
        {spec.name,
         {reinterpret_cast<const std::byte*>(source.data()), DType::kF32, spec.source_shape}});
  }
  engine::WriteSafetensors(to / "model.safetensors", tensors, {{"format", "pt"}});
}

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

double RelativeDifference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  std::vector<float> difference(a.size());
  for (size_t i = 0; i < a.size(); ++i) difference[i] = a[i] - b[i];
  return Norm(difference) / (Norm(b) + 1e-30);
}

// Compares the whole model with the f32 program on the decoded values; golden_test compares that
// one with an f64 reference. engine/ops compares dX of one product with f64 sums.
//
// Differences come from bf16 and from activations rounded to integers. In models this small they
// reach 0.1 for most weights and 0.3 for some of Gemma's. A wrong gradient would differ by 1 or
// more.
TEST(QloraGradients, AreThoseOfTheValuesOfTheBlocks) {
  for (const std::string& name : tests::GoldenNames()) {
    for (const BlockFormat block : {BlockFormat::kInt8, BlockFormat::kInt4}) {
      SCOPED_TRACE(name + " " + engine::BlockFormatName(block));
      const fs::path source = tests::LoadGolden(name).dir;
      const tests::TemporaryDir dir;
      ThreadPool pool(2);
      engine::OpsContext ops(engine::Kernels(), pool);
      const auto base = engine::Model::Load(engine::ModelDir::Open(source), {.block = block}, ops);
      WriteUnpacked(*base, source, dir.path() / "unpacked");
      const auto exact = engine::Model::Load(engine::ModelDir::Open(dir.path() / "unpacked"),
                                             {.dtype = DType::kF32}, ops);
      const MicroBatch batch = Batch(base->config().vocab_size, 48);

      AdapterOf ours(base, ops, 48), reference(exact, ops, 48);
      const double loss = reference.trainer->Gradients({&batch, 1}).loss;
      EXPECT_NEAR(ours.trainer->Gradients({&batch, 1}).loss, loss, 1e-2 * loss);

      for (size_t i = 0; i < ours.trainer->parameters().size(); ++i) {
        const std::string& weight = ours.trainer->parameters().specs()[i].name;
        // A rounded input may choose another expert, whose gradient is then a part of another sum.
        if (weight.find(".experts.") != std::string::npos) continue;
        EXPECT_LT(RelativeDifference(ours.Gradient(i), reference.Gradient(i)), 0.35) << weight;
      }
    }
  }
}

// Memory of a trainer on int4 weights: the base in blocks, four states of A and B, and the arena. A
// bf16 copy of the base would add 3.5 times as much.
TEST(QloraMemory, HoldsTheBaseInItsBlocksAndNothingOfItInBf16) {
  bench::RandomModelSpec model;
  model.config = bench::TinyLlamaConfig();
  model.config.hidden_dim = 1024;
  model.config.ffn_dim = 2816;
  model.config.vocab_size = 300;
  model.config.n_layers = 2;
  const tests::TemporaryDir dir;
  bench::WriteRandomModel(model, dir.path() / "base");
  ThreadPool pool(1);
  engine::OpsContext ops(engine::Kernels(), pool);
  const auto heap = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  const int64_t before = heap();

  const auto base = engine::Model::Load(engine::ModelDir::Open(dir.path() / "base"),
                                        {.block = BlockFormat::kInt4}, ops);
  AdapterOf adapter(base, ops, 32);
  const MicroBatch batch = Batch(model.config.vocab_size, 32);
  ASSERT_TRUE(adapter.trainer->Step({&batch, 1}).updated);

  const int64_t in_bf16 = 2 * base->parameter_count();
  EXPECT_LT(base->weight_bytes(), in_bf16 * 3 / 10);
  const int64_t ours = base->weight_bytes() + adapter.trainer->parameters().bytes() +
                       adapter.trainer->program().arena_bytes;
  // Ropes, scratch memory of the ops, and the head's tile.
  const int64_t rest = base->rope_bytes() + (8 << 20);
  ASSERT_LT(rest, in_bf16 / 2) << "the test could not tell";
  EXPECT_LT(heap() - before, ours + rest);
}

class QloraFiles : public testing::TestWithParam<engine::Encoding> {};

// lora.base_dtype=auto keeps the blocks of a file. An adapter trained on them is served on them
// with the same bits.
TEST_P(QloraFiles, BlocksOfAFileStayAsTheyAreAndTrainEqualsServe) {
  const tests::TemporaryDir dir;
  const fs::path file = tests::WriteRandomGguf(GetParam(), dir.path());
  const engine::ModelDir model = engine::ModelDir::Open(file);
  TrainSpec spec;
  ThreadPool pool(2);
  for (const engine::KernelTable* table : engine::RunnableKernelTables()) {
    SCOPED_TRACE(table->isa);
    engine::OpsContext ops(*table, pool);
    const auto outline = engine::OutlineModel(model, {});
    const auto base = engine::Model::Load(model, BaseLoadOptions(spec, model, outline.specs), ops);
    EXPECT_EQ(base->weights_type().substr(0, 5), "gguf-");
    AdapterOf adapter(base, ops, 48);
    const MicroBatch batch = Batch(base->config().vocab_size, 48);
    for (int step = 0; step < 2; ++step) {
      ASSERT_TRUE(adapter.trainer->Step({&batch, 1}).updated);
    }
    LoraOptions lora;
    lora.rank = 5;
    lora.alpha = 5;
    const fs::path exported = ExportAdapter(
        LoraConfigOf(lora, adapter.trainer->lora_targets(), base->weight_specs(), "base"), {},
        adapter.trainer->parameters(), dir.path() / "adapter");

    tests::ModelHarness served(file, {.kernels = table});
    served.UseAdapter(served.LoadAdapter(exported));
    std::vector<float> logits;
    size_t first = 0;
    for (const Segment& segment : batch.segments) {
      const auto n = static_cast<size_t>(segment.n_rows);
      const std::vector<TokenId> tokens(batch.tokens.begin() + static_cast<long>(first),
                                        batch.tokens.begin() + static_cast<long>(first + n));
      const std::vector<float> part = served.Prefill(tokens, 7);
      logits.insert(logits.end(), part.begin(), part.end());
      first += n;
    }
    const std::vector<float> trained = adapter.Logits(batch);
    ASSERT_EQ(trained.size(), logits.size());
    EXPECT_EQ(std::memcmp(trained.data(), logits.data(), logits.size() * sizeof(float)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Encodings, QloraFiles,
                         testing::Values(engine::Encoding::kQ4_K, engine::Encoding::kQ6_K,
                                         engine::Encoding::kQ8_0, engine::Encoding::kQ4_0),
                         [](const auto& encoding) {
                           return std::string(engine::EncodingName(encoding.param));
                         });

TEST(QloraFiles, ASpecDecidesInWhatTheBaseIsHeld) {
  const tests::TemporaryDir dir;
  const fs::path blocks = tests::WriteRandomGguf(engine::Encoding::kQ8_0, dir.path());
  const fs::path plain = tests::LoadGolden("qwen2-tiny").dir;
  const auto held = [](const fs::path& path, DType compute, LoraBase type) {
    const engine::ModelDir model = engine::ModelDir::Open(path);
    TrainSpec spec;
    spec.compute = compute;
    spec.lora.base = type;
    const auto specs = engine::OutlineModel(model, {}).specs;
    return engine::OutlineModel(model, BaseLoadOptions(spec, model, specs)).types.name;
  };
  EXPECT_EQ(held(blocks, DType::kBF16, LoraBase::kAuto), "gguf-int8");
  EXPECT_EQ(held(blocks, DType::kBF16, LoraBase::kBF16), "bf16");
  EXPECT_EQ(held(blocks, DType::kF32, LoraBase::kF32), "f32");
  EXPECT_EQ(held(blocks, DType::kBF16, LoraBase::kInt4), "int4");
  EXPECT_EQ(held(plain, DType::kBF16, LoraBase::kAuto), "bf16");
  EXPECT_EQ(held(plain, DType::kF32, LoraBase::kAuto), "f32");
  EXPECT_EQ(held(plain, DType::kBF16, LoraBase::kInt8), "int8");
  try {
    held(blocks, DType::kF32, LoraBase::kAuto);
    ADD_FAILURE() << "was not refused";
  } catch (const Error& error) {
    for (const char* part : {"Q8_0", "precision.compute", "lora.base_dtype"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

// ---- Dropout

class LoraDropout : public testing::Test {
 protected:
  LoraDropout() : pool_(2), ops_(engine::Kernels(), pool_) {
    bench::RandomModelSpec model;
    model.config = bench::TinyLlamaConfig();
    bench::WriteRandomModel(model, dir_.path() / "base");
  }
  std::shared_ptr<const engine::Model> Base(DType dtype) {
    return engine::Model::Load(engine::ModelDir::Open(dir_.path() / "base"), {.dtype = dtype},
                               ops_);
  }

  tests::TemporaryDir dir_;
  ThreadPool pool_;
  engine::OpsContext ops_;
};

// Under fixed masks, the loss changes as the gradients predict, along the gradient and along
// independent directions. The gradient also flows through the inputs of adapters in layers above.
TEST_F(LoraDropout, GradientsAgreeWithFiniteDifferencesUnderTheSameMasks) {
  const auto base = Base(DType::kF32);
  const MicroBatch batch = Batch(base->config().vocab_size, 32);
  AdapterOf adapter(base, ops_, 32, 0.4f);
  ParameterStore& parameters = adapter.trainer->parameters();
  adapter.trainer->Gradients({&batch, 1});
  std::vector<std::vector<float>> gradients, start;
  for (size_t i = 0; i < parameters.size(); ++i) {
    gradients.push_back(adapter.Gradient(i));
    start.push_back(parameters.Master(i));
  }
  const auto loss_at = [&](size_t only, double step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      std::vector<float> values = start[i];
      if (i == only) {
        for (size_t e = 0; e < values.size(); ++e) {
          values[e] += static_cast<float>(step * double{gradients[i][e]} / Norm(gradients[i]));
        }
      }
      parameters.SetMaster(i, values);
    }
    adapter.trainer->MastersChanged();
    return adapter.trainer->Gradients({&batch, 1}).loss;
  };
  for (size_t i = 0; i < parameters.size(); ++i) {
    constexpr double kStep = 0.005;
    const double slope = (loss_at(i, kStep) - loss_at(i, -kStep)) / (2 * kStep);
    EXPECT_NEAR(slope, Norm(gradients[i]), 0.02 * Norm(gradients[i]) + 1e-4)
        << parameters.specs()[i].name;
  }
}

TEST_F(LoraDropout, IsOffInEvaluationAndDrawsFromItsSeedAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto base = Base(dtype);
    const MicroBatch batch = Batch(base->config().vocab_size, 32);
    AdapterOf dropped(base, ops_, 32, 0.4f), again(base, ops_, 32, 0.4f),
        other(base, ops_, 32, 0.4f, 6), without(base, ops_, 32);

    EXPECT_EQ(dropped.Logits(batch), without.Logits(batch));
    EXPECT_EQ(dropped.trainer->Evaluate({&batch, 1}).loss,
              without.trainer->Evaluate({&batch, 1}).loss);
    const double loss = dropped.trainer->Gradients({&batch, 1}).loss;
    EXPECT_EQ(again.trainer->Gradients({&batch, 1}).loss, loss);
    EXPECT_NE(other.trainer->Gradients({&batch, 1}).loss, loss);
    EXPECT_NE(without.trainer->Gradients({&batch, 1}).loss, loss);
    EXPECT_EQ(dropped.Gradient(0), again.Gradient(0));
  }
}

// The dropout of a row depends only on its own sample, not on the rest of the batch.
TEST_F(LoraDropout, DoesNotDependOnTheBatch) {
  const auto base = Base(DType::kBF16);
  const MicroBatch whole = Batch(base->config().vocab_size, 48);
  AdapterOf together(base, ops_, 48, 0.4f);
  const StepResult at_once = together.trainer->Gradients({&whole, 1});

  double sum = 0;
  for (size_t s = 0, first = 0; s < 2; ++s) {
    const auto rows = static_cast<size_t>(whole.segments[s].n_rows);
    const auto begin = static_cast<long>(first), end = static_cast<long>(first + rows);
    MicroBatch part;
    part.tokens.assign(whole.tokens.begin() + begin, whole.tokens.begin() + end);
    part.positions.assign(whole.positions.begin() + begin, whole.positions.begin() + end);
    part.targets.assign(whole.targets.begin() + begin, whole.targets.begin() + end);
    part.weights.assign(whole.weights.begin() + begin, whole.weights.begin() + end);
    part.sources.assign(whole.sources.begin() + begin, whole.sources.begin() + end);
    part.segments = {{0, whole.segments[s].n_rows}};
    AdapterOf alone(base, ops_, whole.segments[s].n_rows, 0.4f);
    const StepResult result = alone.trainer->Gradients({&part, 1});
    sum += result.loss * result.total_weights;
    first += rows;
  }
  EXPECT_DOUBLE_EQ(sum, at_once.loss * at_once.total_weights);
}

}  // namespace
}  // namespace tandem::training
