#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "bench/models/random_model.h"
#include "engine/base/error.h"
#include "engine/kernels/kernels.h"
#include "tests/support/families.h"
#include "training/lora/lora.h"
#include "training/program/executor.h"
#include "training/program/passes.h"
#include "training/step/parameters.h"

namespace tandem::training {
namespace {

using engine::DType;

constexpr int64_t kRows = 64;
constexpr size_t kPolicies = static_cast<size_t>(RematPolicy::kAuto);  // all but kAuto

engine::ModelConfig DeepConfig(std::string_view family) {
  engine::ModelConfig config = bench::TinyModelConfig(family);
  // Only every second layer of these mixes rows.
  const bool has_single_parts = !config.mlp_layers.empty();
  config = tests::WithLayers(config, has_single_parts ? 8 : 4);
  config.dropout = 0.2f;
  config.embedding_dropout = 0.1f;
  if (!config.windowed_layers.empty() && config.layer_attention.empty()) {
    config.windowed_layers = {true, false, true, false};
  }
  // All layers alike, for LayersAreFoundInEveryFamily.
  if (!has_single_parts && !config.experts.layers.empty()) config.experts.layers.assign(4, true);
  return config;
}

Program RecordDeep(std::string_view family_name, DType dtype, RematOptions remat,
                   int64_t lora_rank = 0, float lora_dropout = 0) {
  const engine::FamilySpec& family = engine::FindFamilyByName(family_name);
  const engine::ModelConfig config = DeepConfig(family_name);
  RecordOptions options;
  options.rows = kRows;
  options.row_length = 32;
  options.max_segments = 6;
  options.dtype = dtype;
  options.remat = remat;
  options.lora_dropout = lora_dropout;
  LoraOptions lora;
  lora.rank = lora_rank;
  if (lora_rank > 0) options.lora = ChooseLoraTargets(lora, family, config);
  return Record(family, config, options);
}

// Two packed rows of several samples, with some untrained tokens.
struct Batch {
  std::vector<TokenId> tokens, targets;
  std::vector<int32_t> positions;
  std::vector<float> weights;
  std::vector<DropoutRow> sources;
  std::vector<Segment> segments;

  explicit Batch(int64_t vocab) {
    uint32_t state = 4711;
    int64_t row = 0;
    for (const int64_t length : {20, 12, 7, 25}) {
      segments.push_back({row, length});
      for (int64_t i = 0; i < length; ++i) {
        state = state * 1664525u + 1013904223u;
        tokens.push_back(static_cast<TokenId>((state >> 8) % static_cast<uint32_t>(vocab)));
        positions.push_back(static_cast<int32_t>(i));
        weights.push_back(i % 5 == 4 ? 0.0f : 1.0f);
        sources.push_back({static_cast<uint64_t>(segments.size()), static_cast<uint32_t>(i)});
      }
      row += length;
    }
    for (int64_t i = 0; i < row; ++i) {
      targets.push_back(tokens[static_cast<size_t>((i + 1) % row)]);
    }
  }

  ProgramBatch View() const {
    ProgramBatch view;
    view.tokens = tokens;
    view.positions = positions;
    view.segments = segments;
    view.targets = targets;
    view.weights = weights;
    view.sources = sources;
    view.dropout_seed = 9;
    return view;
  }
};

struct TwoSteps {
  double loss = 0;
  std::vector<float> gradients;
};

// Two steps: the second starts with old values in its arena.
TwoSteps RunProgram(const Program& program) {
  const engine::FamilySpec& family = engine::FindFamilyByName(program.family);
  const engine::ModelConfig config = DeepConfig(program.family);
  ThreadPool pool(2);
  engine::OpsContext ops(engine::Kernels(), pool);
  ParameterStore parameters(program.weight_specs, program.dtype, {});
  parameters.InitFresh(3, 0.1, config.n_layers);
  parameters.Repack(ops);
  parameters.ZeroGradients(ops);
  const auto ropes = engine::MakeRopeTables(family, config, kRows);
  Executor executor(program, ops, ropes, parameters.weights(), parameters.gradients());
  const Batch batch(config.vocab_size);
  TwoSteps outcome;
  for (int step = 0; step < 2; ++step) {
    executor.Evaluate(batch.View(), nullptr);
    outcome.loss += executor.Train(batch.View(), 0.05f).weighted_loss;
  }
  for (size_t i = 0; i < program.weight_specs.size(); ++i) {
    if (!program.trained[i]) continue;
    const engine::WeightSpec& spec = program.weight_specs[i];
    const float* gradient = parameters.gradients()[i];
    outcome.gradients.insert(outcome.gradients.end(), gradient, gradient + spec.n * spec.k);
  }
  return outcome;
}

void ExpectSameSteps(const TwoSteps& a, const TwoSteps& b, const std::string& what) {
  EXPECT_EQ(a.loss, b.loss) << what;
  ASSERT_EQ(a.gradients.size(), b.gradients.size()) << what;
  EXPECT_EQ(std::memcmp(a.gradients.data(), b.gradients.data(), a.gradients.size() * sizeof(float)),
            0)
      << what;
}

std::string Named(const Program& program) {
  return program.family + " " + std::string(engine::DTypeName(program.dtype)) + " " +
         std::string(RematPolicyName(program.remat));
}

TEST(Remat, GradientsAreThoseOfKeepingEverythingBitForBit) {
  for (const engine::FamilySpec* family : engine::Families()) {
    SCOPED_TRACE(family->name);
    for (const auto& [dtype, rank] :
         {std::pair{DType::kF32, 0}, {DType::kBF16, 0}, {DType::kBF16, 5}, {DType::kF32, 3}}) {
      const TwoSteps plain = RunProgram(RecordDeep(family->name, dtype, {}, rank));
      EXPECT_TRUE(std::any_of(plain.gradients.begin(), plain.gradients.end(),
                              [](float g) { return g != 0; }));
      for (size_t policy = 1; policy < kPolicies; ++policy) {
        const RematOptions remat{.policy = static_cast<RematPolicy>(policy), .every = 3};
        const Program program = RecordDeep(family->name, dtype, remat, rank);
        EXPECT_GT(CountKept(program).remade, 0) << Named(program);
        ExpectSameSteps(RunProgram(program), plain,
                        Named(program) + " rank " + std::to_string(rank));
      }
    }
  }
}

// Recomputing a layer draws the dropout of A's input again, into memory of the recomputation. The
// forward pass's memory has another owner by then.
TEST(Remat, GradientsOfAdaptersWithDropoutAreThoseOfKeepingEverythingBitForBit) {
  for (const engine::FamilySpec* family : engine::Families()) {
    SCOPED_TRACE(family->name);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TwoSteps without = RunProgram(RecordDeep(family->name, dtype, {}, 5));
      const TwoSteps plain = RunProgram(RecordDeep(family->name, dtype, {}, 5, 0.3f));
      EXPECT_NE(plain.gradients, without.gradients) << family->name;
      for (size_t policy = 1; policy < kPolicies; ++policy) {
        const RematOptions remat{.policy = static_cast<RematPolicy>(policy), .every = 3};
        const Program program = RecordDeep(family->name, dtype, remat, 5, 0.3f);
        const auto again = [](const Node& node) { return node.lora.remake_scratch >= 0; };
        if (remat.policy == RematPolicy::kFull) {
          EXPECT_TRUE(std::any_of(program.nodes.begin(), program.nodes.end(), again));
        }
        ExpectSameSteps(RunProgram(program), plain, Named(program));
      }
    }
  }
}

TEST(Remat, BuffersThatLiveTogetherDoNotOverlap) {
  for (const engine::FamilySpec* family : engine::Families()) {
    SCOPED_TRACE(family->name);
    for (size_t policy = 1; policy < 2 * kPolicies; ++policy) {
      const RematOptions remat{.policy = static_cast<RematPolicy>(policy % kPolicies), .every = 2};
      const bool adapted = policy >= kPolicies;
      const Program program = RecordDeep(family->name, DType::kBF16, remat, adapted ? 5 : 0, 0.3f);
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
}

TEST(Remat, LayersAreFoundInEveryFamily) {
  for (const engine::FamilySpec* family : engine::Families()) {
    SCOPED_TRACE(family->name);
    const Program program = RecordDeep(family->name, DType::kBF16, {});
    const std::vector<Block> blocks = FindBlocks(program);
    const engine::ModelConfig tiny = bench::TinyModelConfig(family->name);
    // Several streams lead from layer to layer, so that all layers are one block.
    if (tiny.gemma.n_streams > 1) {
      EXPECT_EQ(blocks.size(), 1u);
      continue;
    }
    ASSERT_EQ(blocks.size(), 4u);
    const bool has_one_mixer = tiny.recurrent.layers.empty();
    // Other layers than those with rope may have other norms.
    const auto& ropes = tiny.layer_ropes;
    const bool alike = has_one_mixer && tiny.gemma.n_shared_kv_layers == 0 &&
                       std::count(ropes.begin(), ropes.end(), tiny.LayerRope(0)) ==
                           static_cast<int64_t>(ropes.size());
    for (size_t b = 0; b < blocks.size(); ++b) {
      int mixers = 0;
      int64_t columns = 0;
      for (int32_t i = blocks[b].first; i < blocks[b].last; ++i) {
        mixers += MixesRows(program.nodes[i].op);
        columns += program.values[program.nodes[i].outputs[0]].cols;
      }
      // A recurrence has a convolution before it.
      EXPECT_GE(mixers, 1) << family->name;
      if (has_one_mixer) {
        EXPECT_EQ(mixers, 1) << family->name;
      }
      EXPECT_EQ(program.values[blocks[b].entry].cols, 48);
      EXPECT_EQ(program.values[blocks[b].entry].dtype, DType::kF32);
      if (b > 0) {
        EXPECT_EQ(blocks[b].entry, blocks[b - 1].exit);
      }
      // Without recurrent layers all layers are alike, so equal lengths show correct cuts. The last
      // layer of a family with norms after the sum leaves its norm to the head.
      const int64_t length = blocks[b].last - blocks[b].first;
      EXPECT_TRUE(!alike || std::abs(length - (blocks[1].last - blocks[1].first)) <= 2)
          << family->name;
      EXPECT_GT(columns, 0);
    }
  }
}

// "full" keeps only a layer's input and its row statistics.
TEST(Remat, FullKeepsOneValuePerLayer) {
  const Program program = RecordDeep("llama", DType::kBF16, {.policy = RematPolicy::kFull});
  const auto head = static_cast<int32_t>(program.nodes.size()) - 1;
  const std::vector<Block> blocks = FindBlocks(program);
  std::vector<int32_t> kept;
  for (size_t v = 0; v < program.values.size(); ++v) {
    const Buffer& buffer = program.buffers[program.values[v].buffer];
    if (buffer.first_step >= 0 && buffer.last_step > head) kept.push_back(static_cast<int32_t>(v));
  }
  std::vector<int32_t> expected;
  for (const Block& block : blocks) expected.push_back(block.entry);
  expected.push_back(blocks.back().exit);  // the last norm's input
  EXPECT_EQ(kept, expected);
}

TEST(Remat, EachPolicyOfTheLadderTakesLessMemoryAndMoreWork) {
  const auto at = [](RematPolicy policy) { return RecordDeep("llama", DType::kBF16, {policy}); };
  const RematPolicy ladder[] = {RematPolicy::kNone,        RematPolicy::kMinimalWithContext,
                                RematPolicy::kMinimal,     RematPolicy::kSaveDotExceptMlp,
                                RematPolicy::kSaveQkvProj, RematPolicy::kFull};
  for (size_t i = 1; i < std::size(ladder); ++i) {
    const Program more = at(ladder[i - 1]);
    const Program less = at(ladder[i]);
    EXPECT_LT(CountKept(less).kept, CountKept(more).kept) << RematPolicyName(ladder[i]);
    EXPECT_GE(less.recompute_flops(), more.recompute_flops()) << RematPolicyName(ladder[i]);
    EXPECT_EQ(less.training_flops(), more.training_flops());
  }
  const Program full = at(RematPolicy::kFull);
  EXPECT_LT(full.arena_bytes, at(RematPolicy::kNone).arena_bytes);
  // Recomputation costs at most the layers' forward pass.
  EXPECT_LE(full.recompute_flops(), full.forward_flops());
}

TEST(Remat, AutoFitsEveryBudgetBetweenFullAndNone) {
  const Program none = RecordDeep("llama", DType::kBF16, {});
  const Program full = RecordDeep("llama", DType::kBF16, {.policy = RematPolicy::kFull});
  const TwoSteps plain = RunProgram(none);
  int64_t last_flops = INT64_MAX;
  for (int step = 0; step <= 6; ++step) {
    const int64_t budget = full.arena_bytes + (none.arena_bytes - full.arena_bytes) * step / 6;
    const Program program =
        RecordDeep("llama", DType::kBF16, {.policy = RematPolicy::kAuto, .max_bytes = budget});
    EXPECT_LE(program.arena_bytes, budget);
    EXPECT_LE(program.recompute_flops(), last_flops);
    last_flops = program.recompute_flops();
    ExpectSameSteps(RunProgram(program), plain, "auto " + std::to_string(budget));
  }
  EXPECT_EQ(last_flops, 0);  // all of it fits
}

TEST(Remat, AutoRefusesWithNumbersWhatCannotFit) {
  const Program none = RecordDeep("llama", DType::kBF16, {});
  std::string message;
  try {
    RecordDeep("llama", DType::kBF16, {.policy = RematPolicy::kAuto, .max_bytes = 1000});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
    message = error.what();
  }
  EXPECT_NE(message.find("1000 bytes"), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(none.arena_bytes)), std::string::npos) << message;
}

TEST(Remat, NamesLeadToTheirPolicies) {
  for (const std::string_view name : RematPolicyNames()) {
    ASSERT_TRUE(FindRematPolicy(name));
    EXPECT_EQ(RematPolicyName(*FindRematPolicy(name)), name);
  }
  EXPECT_EQ(RematPolicyNames().size(), static_cast<size_t>(RematPolicy::kAuto) + 1);
  EXPECT_FALSE(FindRematPolicy("minimal_offloaded"));
}

}  // namespace
}  // namespace tandem::training
