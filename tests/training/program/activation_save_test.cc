// Saved values of activation functions, and feed-forward layers in chunks. Gradients do not change,
// memory follows the formulas, and unsupported cases are refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "training/lora/lora.h"
#include "training/program/executor.h"
#include "training/step/parameters.h"

namespace tandem::training {
namespace {

using engine::DType;

constexpr int32_t kSegment = 200;  // the context of the tiny models is 256

struct Case {
  std::string_view family = "minigpt";
  DType dtype = DType::kBF16;
  std::string frozen = {};  // in the names of frozen weights; empty: none is frozen
  int64_t lora_rank = 0;
  std::string lora_modules = {};  // empty: all
  float lora_dropout = 0;
  int64_t rows = 37;
  RematOptions remat = {};
};

// 37 * 77 bits are not a whole number of bytes.
engine::ModelConfig ConfigOf(const Case& c) {
  engine::ModelConfig config = bench::TinyModelConfig(c.family);
  config.ffn_dim = 77;
  config.dropout = 0.1f;
  if (c.family == "gpt2") config.activation = engine::Activation::kRelu;
  return config;
}

Program RecordCase(const Case& c) {
  const engine::FamilySpec& family = engine::FindFamilyByName(c.family);
  RecordOptions options;
  options.rows = c.rows;
  options.row_length = c.rows;
  options.max_segments = c.rows / kSegment + 1;
  options.dtype = c.dtype;
  options.remat = c.remat;
  options.lora_dropout = c.lora_dropout;
  if (c.lora_rank > 0) {
    LoraOptions lora;
    lora.rank = c.lora_rank;
    if (!c.lora_modules.empty()) lora.module_path = c.lora_modules;
    options.lora = ChooseLoraTargets(lora, family, ConfigOf(c));
  } else if (!c.frozen.empty()) {
    for (const engine::WeightSpec& spec : family.list_weights(ConfigOf(c))) {
      options.trained.push_back(spec.name.find(c.frozen) == std::string::npos);
    }
  }
  return Record(family, ConfigOf(c), options);
}

struct Outcome {
  double loss = 0;
  std::vector<float> gradients;
  int64_t packed_bytes = 0;
};

// Two steps with evaluations between them: the second step starts with old values in its arena.
Outcome Trained(const Case& c, int threads = 2) {
  const Program program = RecordCase(c);
  const engine::ModelConfig config = ConfigOf(c);
  ThreadPool pool(threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  ParameterStore parameters(program.weight_specs, program.dtype, program.trained);
  parameters.InitFresh(3, 0.1, config.n_layers);
  parameters.Repack(ops);
  parameters.ZeroGradients(ops);
  const auto ropes =
      engine::MakeRopeTables(engine::FindFamilyByName(c.family), config, config.max_context_len);
  Executor executor(program, ops, ropes, parameters.weights(), parameters.gradients());
  std::vector<TokenId> tokens, targets;
  std::vector<int32_t> positions;
  std::vector<float> weights(static_cast<size_t>(c.rows), 1.0f);
  std::vector<DropoutRow> sources;
  std::vector<Segment> segments;
  for (int32_t i = 0; i < c.rows; ++i) {
    tokens.push_back(i * 7 % 250);
    targets.push_back(i * 11 % 250);
    positions.push_back(i % kSegment);
    sources.push_back({static_cast<uint64_t>(i / kSegment), static_cast<uint32_t>(i % kSegment)});
    if (i % kSegment == 0) segments.push_back({i, std::min<int64_t>(kSegment, c.rows - i)});
  }
  ProgramBatch batch;
  batch.tokens = tokens;
  batch.targets = targets;
  batch.positions = positions;
  batch.weights = weights;
  batch.sources = sources;
  batch.segments = segments;
  Outcome outcome;
  for (int step = 0; step < 2; ++step) {
    executor.Evaluate(batch, nullptr);
    outcome.loss += executor.Train(batch, 0.1f).weighted_loss;
  }
  outcome.packed_bytes = executor.packed_bytes();
  for (size_t i = 0; i < program.weight_specs.size(); ++i) {
    if (!program.trained[i]) continue;
    const engine::WeightSpec& spec = program.weight_specs[i];
    const float* gradient = parameters.gradients()[i];
    outcome.gradients.insert(outcome.gradients.end(), gradient, gradient + spec.n * spec.k);
  }
  return outcome;
}

void ExpectSame(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  EXPECT_TRUE(std::any_of(a.gradients.begin(), a.gradients.end(), [](float g) { return g != 0; }));
  EXPECT_EQ(std::memcmp(a.gradients.data(), b.gradients.data(), a.gradients.size() * sizeof(float)),
            0)
      << what;
}

std::string Named(const Case& c) {
  return std::string(c.family) + " " + std::string(engine::DTypeName(c.dtype)) + " without " +
         c.frozen + " " + std::string(ActivationSaveName(c.remat.save)) + " " +
         std::string(RematPolicyName(c.remat.policy)) + " chunks of " +
         std::to_string(c.remat.seq_chunk);
}

// The weight after ReLU in minigpt and GPT-2.
std::string BehindRelu(std::string_view family) {
  return family == "gpt2" ? "mlp.c_proj.weight" : "linear2.kernel";
}

constexpr std::string_view kReluFamilies[] = {"minigpt", "gpt2"};

TEST(ActivationSave, GradientsAreThoseOfThePlainProgramBitForBit) {
  for (const std::string_view family : kReluFamilies) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::string& frozen : {std::string(), BehindRelu(family)}) {
        Case c{.family = family, .dtype = dtype, .frozen = frozen};
        const Outcome plain = Trained(c);
        for (const ActivationSave save : {ActivationSave::kReluMask1, ActivationSave::kReluSparse,
                                          ActivationSave::kRecompute}) {
          if (frozen.empty() && save == ActivationSave::kReluMask1) continue;  // refused
          c.remat.save = save;
          for (const RematPolicy policy :
               {RematPolicy::kNone, RematPolicy::kSaveQkvProj, RematPolicy::kFull}) {
            c.remat.policy = policy;
            ExpectSame(Trained(c), plain, Named(c));
          }
        }
      }
    }
  }
}

TEST(ActivationSave, RecomputationIsForEveryFamily) {
  for (const engine::FamilySpec* family : engine::Families()) {
    Case c{.family = family->name};
    const Outcome plain = Trained(c);
    const int64_t plain_kept = CountKept(RecordCase(c)).kept;
    c.remat.save = ActivationSave::kRecompute;
    ExpectSame(Trained(c), plain, Named(c));
    // A recurrence alone has no activation between matrices.
    const Program program = RecordCase(c);
    const auto& nodes = program.nodes;
    const bool has_any = std::any_of(nodes.begin(), nodes.end(), [](const Node& node) {
      return node.op == OpKind::kGatedActivation || node.op == OpKind::kActivate;
    });
    const int64_t kept = CountKept(RecordCase(c)).kept;
    EXPECT_TRUE(has_any ? kept < plain_kept : kept == plain_kept) << family->name;
  }
}

TEST(ActivationSave, AdaptersThatLeaveTheLayerBehindReluAloneMayKeepMasks) {
  Case c{.lora_rank = 3, .lora_modules = "query|value|linear1", .lora_dropout = 0.2f};
  const Outcome plain = Trained(c);
  c.remat.save = ActivationSave::kReluMask1;
  ExpectSame(Trained(c), plain, Named(c));
}

constexpr int64_t kLayers = 2;
constexpr int64_t kElements = 37 * 77;

TEST(ActivationSave, MasksTakeTheBytesOfTheFormula) {
  Case c{.frozen = BehindRelu("minigpt")};
  const Program plain = RecordCase(c);
  c.remat.save = ActivationSave::kReluMask1;
  const Program masked = RecordCase(c);
  // The mask replaces ReLU's f32 input; ReLU's result has no other reader.
  EXPECT_EQ(CountKept(plain).kept - CountKept(masked).kept,
            kLayers * (kElements * 4 - (kElements + 7) / 8));
  EXPECT_EQ(CountKept(masked).remade, 0);
  EXPECT_EQ(masked.packed_bytes, 0);
}

TEST(ActivationSave, PackedResultsTakeTheBytesOfTheFormula) {
  Case c;
  const Program plain = RecordCase(c);
  c.remat.save = ActivationSave::kReluSparse;
  const Program sparse = RecordCase(c);
  // In the arena, the mask replaces the f32 input and the bf16 result (78 columns with padding).
  // Outside it, at most all results are packed.
  EXPECT_EQ(CountKept(plain).kept - CountKept(sparse).kept,
            kLayers * (kElements * 4 + 37 * 78 * 2 - (kElements + 7) / 8));
  EXPECT_EQ(sparse.packed_bytes, kLayers * kElements * 2);
  EXPECT_EQ(sparse.recompute_flops(), 0);
  // Fresh weights let about half of the values through.
  const int64_t used = Trained(c).packed_bytes;
  EXPECT_EQ(used % 2, 0);
  EXPECT_NEAR(static_cast<double>(used), static_cast<double>(sparse.packed_bytes) / 2,
              0.15 * static_cast<double>(sparse.packed_bytes));
}

std::string RefusalOf(const Case& c, ErrorCode code = ErrorCode::kInvalidArgument) {
  try {
    RecordCase(c);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  return "";
}

TEST(ActivationSave, ATrainedLayerBehindReluIsRefusedByName) {
  const std::string message = RefusalOf({.remat = {.save = ActivationSave::kReluMask1}});
  EXPECT_NE(message.find("linear2.kernel"), std::string::npos) << message;
  EXPECT_NE(message.find("model.trainable"), std::string::npos) << message;
  EXPECT_NE(message.find("relu_sparse"), std::string::npos) << message;
}

TEST(ActivationSave, AnAdaptedLayerBehindReluIsRefusedByName) {
  const std::string message =
      RefusalOf({.lora_rank = 3, .remat = {.save = ActivationSave::kReluMask1}});
  EXPECT_NE(message.find("linear2"), std::string::npos) << message;
  EXPECT_NE(message.find("lora.module_path"), std::string::npos) << message;
}

TEST(ActivationSave, AModelWithoutReluIsToldWhatItHas) {
  for (const auto& [family, has] : {std::pair{"llama", "gated SiLU"}, {"gemma2", "gated GELU"}}) {
    for (const ActivationSave save : {ActivationSave::kReluMask1, ActivationSave::kReluSparse}) {
      const std::string message = RefusalOf({.family = family, .remat = {.save = save}});
      EXPECT_NE(message.find(has), std::string::npos) << message;
      EXPECT_NE(message.find("recompute"), std::string::npos) << message;
    }
  }
}

// Mamba 2 has no feed-forward layers; those of Falcon-H1 have multipliers between their products.
bool HasChunks(std::string_view family) { return family != "mamba2" && family != "falcon_h1"; }

TEST(SeqChunk, FamiliesWithoutSuchLayersAreRefusedByName) {
  for (const engine::FamilySpec* family : engine::Families()) {
    if (HasChunks(family->name)) continue;
    const std::string message =
        RefusalOf({.family = family->name, .rows = 2100, .remat = {.seq_chunk = 1024}},
                  ErrorCode::kUnsupported);
    EXPECT_NE(message.find(family->name), std::string::npos) << message;
  }
}

TEST(SeqChunk, AnyChunkGivesTheBitsOfTheWhole) {
  for (const engine::FamilySpec* family : engine::Families()) {
    if (!HasChunks(family->name)) continue;
    SCOPED_TRACE(family->name);
    for (const auto& [rank, rate] : {std::pair{0, 0.0f}, {3, 0.2f}}) {
      Case c{.family = family->name, .lora_rank = rank, .lora_dropout = rate, .rows = 2100};
      const Outcome whole = Trained(c);
      for (const int64_t chunk : {1024, 2048}) {
        c.remat.seq_chunk = chunk;
        ExpectSame(Trained(c), whole, Named(c) + " rank " + std::to_string(rank));
      }
    }
  }
}

TEST(SeqChunk, GoesWithEveryWayToKeepLess) {
  for (const std::string_view family : {"minigpt", "gemma2"}) {
    Case c{.family = family, .frozen = BehindRelu(family), .rows = 2100};
    const Outcome plain = Trained(c);
    c.remat.seq_chunk = 1024;
    for (const ActivationSave save : {ActivationSave::kPlain, ActivationSave::kReluMask1,
                                      ActivationSave::kReluSparse, ActivationSave::kRecompute}) {
      const bool has_relu = family == "minigpt";
      if (!has_relu && save != ActivationSave::kPlain && save != ActivationSave::kRecompute) {
        continue;
      }
      c.remat.save = save;
      for (const RematPolicy policy :
           {RematPolicy::kNone, RematPolicy::kMinimal, RematPolicy::kFull, RematPolicy::kEveryK}) {
        c.remat.policy = policy;
        ExpectSame(Trained(c), plain, Named(c));
      }
    }
  }
}

TEST(SeqChunk, PackedResultsAreThoseOfAllChunks) {
  Case c{.rows = 2100, .remat = {.save = ActivationSave::kReluSparse}};
  const Outcome whole = Trained(c);
  c.remat.seq_chunk = 1024;
  const Outcome chunked = Trained(c, 3);
  ExpectSame(chunked, whole, Named(c));
  EXPECT_EQ(chunked.packed_bytes, whole.packed_bytes);
}

// A buffer as wide as the feed-forward layer has at most the rows of a chunk.
TEST(SeqChunk, WideBuffersLiveWithinAChunk) {
  for (const std::string_view family : {"minigpt", "gpt2", "llama", "gemma2"}) {
    Case c{.family = family, .rows = 8192};
    const Program whole = RecordCase(c);
    c.remat.seq_chunk = 1024;
    const Program chunked = RecordCase(c);
    EXPECT_LT(chunked.arena_bytes, whole.arena_bytes);
    int n_wide = 0;
    for (const Value& value : chunked.values) {
      if (value.cols != 77) continue;
      ++n_wide;
      EXPECT_TRUE(value.chunked);
      for (const int32_t buffer : {value.buffer, value.remade, value.gradient}) {
        if (buffer < 0) continue;
        EXPECT_LE(chunked.buffers[buffer].bytes, 1024 * 77 * 4) << chunked.buffers[buffer].role;
      }
    }
    EXPECT_GE(n_wide, 4) << family;
  }
}

TEST(SeqChunk, BuffersThatLiveTogetherDoNotOverlap) {
  for (const RematPolicy policy : {RematPolicy::kNone, RematPolicy::kFull}) {
    const Program program = RecordCase({.family = "gemma2",
                                        .lora_rank = 3,
                                        .lora_dropout = 0.1f,
                                        .rows = 2100,
                                        .remat = {.policy = policy, .seq_chunk = 1024}});
    for (size_t i = 0; i < program.buffers.size(); ++i) {
      const Buffer& a = program.buffers[i];
      if (a.first_step < 0) continue;
      EXPECT_LE(a.offset + a.bytes, program.arena_bytes);
      for (size_t j = i + 1; j < program.buffers.size(); ++j) {
        const Buffer& b = program.buffers[j];
        if (b.first_step < 0) continue;
        const bool together = a.first_step <= b.last_step && b.first_step <= a.last_step;
        const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
        EXPECT_FALSE(together && overlap) << a.role << " and " << b.role;
      }
    }
  }
}

TEST(SeqChunk, AutoStillFitsItsBudget) {
  Case c{.family = "llama", .rows = 2100, .remat = {.seq_chunk = 1024}};
  const Outcome plain = Trained(c);
  const int64_t none = RecordCase(c).arena_bytes;
  c.remat.policy = RematPolicy::kFull;
  const int64_t full = RecordCase(c).arena_bytes;
  c.remat.policy = RematPolicy::kAuto;
  c.remat.max_bytes = (none + full) / 2;
  EXPECT_LE(RecordCase(c).arena_bytes, c.remat.max_bytes);
  ExpectSame(Trained(c), plain, Named(c));
}

}  // namespace
}  // namespace tandem::training
