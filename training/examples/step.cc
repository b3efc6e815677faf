// Takes one training step of a tiny Llama that reads bytes, and prints the loss before and after.

#include <cstdio>

#include "engine/kernels/kernels.h"
#include "engine/model/families/family.h"
#include "training/data/packer.h"
#include "training/step/trainer.h"

using namespace tandem;
int main() {
  engine::ModelConfig config;
  config.family = "llama";
  config.n_layers = 2;
  config.hidden_dim = config.max_context_len = 64;
  config.ffn_dim = 128;
  config.vocab_size = 256;  // every token is a byte
  config.attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 16, .scale = 0.25f};
  training::TrainerOptions options;
  options.row_length = 8;
  options.schedule = {.learning_rate = 0.003, .kind = training::ScheduleKind::kConstant};
  ThreadPool pool(0);  // one thread per core
  engine::OpsContext ops(engine::Kernels(), pool);
  training::Trainer trainer(engine::FindFamilyByName(config.family), config, engine::DType::kF32,
                            options, ops);
  trainer.parameters().InitFresh(1, 0.02, config.n_layers);
  trainer.MastersChanged();

  // A batch of one row. The model learns every letter but the first.
  training::Sample sample;
  sample.Append({'s', 'u', 'n', 's', 'h', 'i', 'n', 'e'}, true);
  training::Packer packer({.row_length = 8, .n_samples = 1}, [&](int64_t) { return sample; });
  training::PackedRow row;
  packer.Next(&row);
  training::MicroBatch batch;
  batch.Append(row);
  std::printf("loss %.4f before the step, ", trainer.Evaluate({&batch, 1}).loss);
  trainer.Step({&batch, 1});
  std::printf("%.4f after it\n", trainer.Evaluate({&batch, 1}).loss);
}
