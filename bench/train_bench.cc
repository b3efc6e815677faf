#include "bench/train_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/gemm_bench.h"
#include "bench/measure/paired.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/model/families/family.h"
#include "engine/model/model.h"
#include "training/lora/lora.h"
#include "training/step/trainer.h"

namespace tandem::bench {
namespace {

engine::ModelConfig ConfigOf(const TrainBenchOptions& options) {
  engine::ModelConfig c;
  c.family = options.family;
  c.n_layers = options.n_layers;
  c.hidden_dim = options.hidden_dim;
  c.ffn_dim = options.ffn_dim;
  c.vocab_size = options.vocab_size;
  c.max_context_len = options.context;
  c.activation =
      options.family == "minigpt" ? engine::Activation::kRelu : engine::Activation::kSilu;
  if (options.family == "gpt2") {
    c.activation = engine::Activation::kGeluTanh;
    c.tied_embeddings = true;
  }
  c.attention.n_heads = options.n_heads;
  c.attention.n_kv_heads = options.n_heads;
  c.attention.head_dim = options.hidden_dim / options.n_heads;
  c.attention.scale = 1 / std::sqrt(static_cast<float>(c.attention.head_dim));
  return c;
}

training::MicroBatch RandomBatch(const TrainBenchOptions& options, int64_t vocab_size) {
  training::MicroBatch batch;
  std::mt19937 rng(1);
  const auto draw = [&] { return static_cast<TokenId>(rng() % static_cast<uint32_t>(vocab_size)); };
  for (int64_t row = 0; row < options.batch; ++row) {
    batch.segments.push_back({row * options.context, options.context});
    for (int64_t i = 0; i < options.context; ++i) {
      batch.tokens.push_back(draw());
      batch.targets.push_back(draw());
      batch.positions.push_back(static_cast<int32_t>(i));
      batch.weights.push_back(1);
      batch.sources.push_back(
          {.sample = static_cast<uint64_t>(row), .position = static_cast<uint32_t>(i)});
    }
  }
  return batch;
}

std::unique_ptr<training::Trainer> MakeTrainer(const TrainBenchOptions& options,
                                               engine::OpsContext& ops) {
  training::TrainerOptions trainer_options;
  trainer_options.rows_per_batch = options.batch;
  trainer_options.row_length = options.context;
  trainer_options.schedule = {.learning_rate = 1e-3, .kind = training::ScheduleKind::kConstant};
  const engine::DType dtype = options.bf16 ? engine::DType::kBF16 : engine::DType::kF32;
  if (options.model.empty()) {
    auto trainer = std::make_unique<training::Trainer>(
        engine::FindFamilyByName(options.family), ConfigOf(options), dtype, trainer_options, ops);
    trainer->parameters().InitFresh(1, 0.02, options.n_layers);
    return trainer;
  }
  const engine::ModelDir files = engine::ModelDir::Open(options.model);
  if (options.lora_rank == 0) {
    const engine::ModelOutline outline = engine::OutlineModel(files, {.dtype = dtype});
    auto trainer = std::make_unique<training::Trainer>(*outline.family, outline.config, dtype,
                                                       trainer_options, ops);
    trainer->parameters().LoadFrom(files);
    return trainer;
  }
  auto base = engine::Model::Load(files, {.dtype = dtype, .cache_dir = options.cache_dir}, ops);
  training::LoraOptions lora;
  lora.enable = true;
  lora.rank = options.lora_rank;
  std::vector<training::LoraTarget> targets =
      training::ChooseLoraTargets(lora, base->family(), base->config());
  auto trainer = std::make_unique<training::Trainer>(std::move(base), std::move(targets),
                                                     trainer_options, ops);
  training::ParameterStore& adapter = trainer->parameters();
  for (size_t i = 0; i < adapter.size(); ++i) {
    adapter.SetMaster(i, training::InitialLora(adapter.specs()[i], lora.init, 1));
  }
  return trainer;
}

// Returns "gpt2, 123849984 parameters" or "llama, an adapter of 11272192 parameters".
std::string SubjectOf(training::Trainer& trainer) {
  return trainer.config().family + (trainer.base() != nullptr ? ", an adapter of " : ", ") +
         std::to_string(trainer.parameters().parameter_count()) + " parameters";
}

}  // namespace

int RunTrainBench(std::ostream& out, const TrainBenchOptions& options) {
  ThreadPool pool(options.threads);
  engine::OpsContext ops(engine::Kernels(), pool);
  const std::unique_ptr<training::Trainer> made = MakeTrainer(options, ops);
  training::Trainer& trainer = *made;
  trainer.MastersChanged();
  const training::MicroBatch batch = RandomBatch(options, trainer.config().vocab_size);
  const double tokens = static_cast<double>(options.batch * options.context);
  const double flops = static_cast<double>(trainer.program().training_flops());

  trainer.Step({&batch, 1});  // allocates
  std::vector<double> ours;
  std::vector<double> peers;
  std::vector<double> ratios;
  std::vector<double> shares;
  for (int round = 0; round < options.rounds; ++round) {
    double best = 0;
    for (int64_t step = 0; step < options.steps; ++step) {
      const auto from = std::chrono::steady_clock::now();
      trainer.Step({&batch, 1});
      const double seconds =
          std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
      best = std::max(best, tokens / seconds);
    }
    ours.push_back(best);
    const Roof roof = MeasureRoof(pool.n_threads(), 0.3);
    shares.push_back(best / tokens * flops / (options.bf16 ? roof.bf16_flops : roof.f32_flops));
    if (options.peer.empty()) continue;
    peers.push_back(RunPeer(options.peer));
    ratios.push_back(best / peers.back());
  }
  char line[256];
  std::snprintf(line, sizeof line,
                "%s, %lld x %lld tokens, %s, %d threads, %s: %.0f tokens/s, %.1f "
                "%% of the peak (medians of %d rounds, best of %lld steps each)\n",
                SubjectOf(trainer).c_str(), static_cast<long long>(options.batch),
                static_cast<long long>(options.context), options.bf16 ? "bf16" : "f32",
                pool.n_threads(), std::string(ops.kernels().key).c_str(), Median(ours),
                100 * Median(shares), options.rounds, static_cast<long long>(options.steps));
  out << line;
  if (!ratios.empty()) {
    std::snprintf(line, sizeof line, "peer: %.0f tokens/s; ratio %.2f (median of %d pairs)\n",
                  Median(peers), Median(ratios), options.rounds);
    out << line;
  }
  return 0;
}

}  // namespace tandem::bench
