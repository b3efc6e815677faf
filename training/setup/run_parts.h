#pragma once

#include <span>
#include <string>

#include "engine/base/job_context.h"
#include "engine/base/thread_pool.h"
#include "engine/ops/ops_context.h"
#include "training/data/packer.h"
#include "training/setup/lora_base.h"
#include "training/setup/model_files.h"
#include "training/setup/open_data.h"
#include "training/spec/spec.h"
#include "training/step/trainer.h"

namespace tandem::training {

// The opened and created parts of a run. Borrows the spec.
struct RunParts {
  RunParts(const TrainSpec& spec, const JobContext& context);

  const TrainSpec& spec;
  ThreadPool pool;
  engine::OpsContext ops;
  ModelFiles files;
  OpenedData data;
  std::string data_sha256;  // of the training files; empty without a run directory
  Packer packer;
  AdapterPlan adapter;  // empty without lora
  Trainer trainer;
  std::vector<TokenId> turn_ends;  // end answers, but ended no text of the model before
  // For train.dpo: log-probabilities of every pair under the initial model (run_reference.h).
  std::vector<PairLogProbs> reference;

  bool is_adapter() const { return trainer.base() != nullptr; }
};

// Which weights `model.trainable` names; empty: all.
std::vector<bool> TrainedWeights(const TrainSpec& spec, const ModelFiles& files,
                                 const std::vector<engine::WeightSpec>& weights);
// All options except `trained`.
TrainerOptions TrainerOptionsOf(const TrainSpec& spec);
PackerOptions PackerOptionsOf(const TrainSpec& spec, int64_t n_samples);

// Fills the next micro-batches of a step. Returns false at the end of the data.
bool NextBatches(RunParts& parts, std::span<MicroBatch> batches);

// Sets the masters to the initial weights, loaded or drawn, of a run that does not resume.
void InitialWeights(RunParts& parts);

}  // namespace tandem::training
