// Takes one training step of a tiny Llama that reads bytes, and prints the loss before and after.

#include <cstdio>
#include <string_view>

#include "engine/kernels/kernels.h"
#include "engine/model/families/family.h"
#include "training/data/packer.h"
#include "training/step/trainer.h"

namespace engine = tandem::engine;
namespace training = tandem::training;

constexpr int64_t kRowLength = 64;

// Two layers; every token is a byte.
engine::ModelConfig TinyLlama() {
  engine::ModelConfig config;
  config.family = "llama";
  config.n_layers = 2;
  config.hidden_dim = 64;
  config.ffn_dim = 128;
  config.vocab_size = 256;
  config.max_context_len = kRowLength;
  config.attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .scale = 0.25f};
  return config;
}

// A batch of one row. The model learns every byte of the text but the first.
training::MicroBatch BatchOf(std::string_view text) {
  training::Sample sample;
  sample.Append({text.begin(), text.end()}, true);
  training::Packer packer({.row_length = kRowLength, .n_samples = 1},
                          [&](int64_t) { return sample; });
  training::PackedRow row;
  packer.Next(&row);
  training::MicroBatch batch;
  batch.Append(row);
  return batch;
}

int main() {
  tandem::ThreadPool pool(0);  // one thread per core
  engine::OpsContext ops(engine::Kernels(), pool);
  training::TrainerOptions options;
  options.row_length = kRowLength;
  options.schedule = {.learning_rate = 0.003, .kind = training::ScheduleKind::kConstant};
  const engine::ModelConfig config = TinyLlama();
  training::Trainer trainer(engine::FindFamilyByName(config.family), config, engine::DType::kF32,
                            options, ops);
  trainer.parameters().InitFresh(1, 0.02, config.n_layers);
  trainer.MastersChanged();

  const training::MicroBatch batch = BatchOf("Once upon a time there was a dog.");
  const double before = trainer.Evaluate({&batch, 1}).loss;
  trainer.Step({&batch, 1});
  const double after = trainer.Evaluate({&batch, 1}).loss;
  std::printf("loss %.4f before the step, %.4f after it\n", before, after);
}
