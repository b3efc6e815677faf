#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/base/job_context.h"
#include "engine/base/thread_pool.h"
#include "engine/ops/ops_context.h"
#include "training/data/packer.h"
#include "training/dist/collectives.h"
#include "training/setup/lora_base.h"
#include "training/setup/model_files.h"
#include "training/setup/open_data.h"
#include "training/spec/spec.h"
#include "training/step/trainer.h"
#include "training/teacher/teacher_figures.h"

namespace tandem::training {

// The opened and created parts of a run. Borrows the spec, and the ranks of a run that several
// processes share (null: this is the only one). Only the first rank writes to the run's directory.
struct RunParts {
  RunParts(const TrainSpec& spec, const JobContext& context, Collectives* ranks = nullptr);

  const TrainSpec& spec;
  Collectives* const ranks;
  ThreadPool pool;
  engine::OpsContext ops;
  ModelFiles files;
  OpenedData data;
  std::string data_sha256;  // of the training files; empty without a run directory
  Packer packer;
  AdapterPlan adapter;  // empty without lora
  Trainer trainer;
  std::string loss_sha256;         // of train.loss_library's file; empty without one
  std::vector<TokenId> turn_ends;  // end answers, but ended no text of the model before
  // For train.dpo: log-probabilities of every pair under the initial model (run_reference.h).
  std::vector<PairLogProbs> reference;
  // For train.distill: the teacher's figures of every sample (run_teacher.h).
  std::shared_ptr<const TeacherFigures> teacher;

  bool is_first_rank() const { return ranks == nullptr || ranks->is_first(); }
  // Micro-batches of a step that this rank computes.
  int64_t own_batches() const {
    constexpr auto kRows = Collectives::Group::kRows;
    return spec.batches_per_step() / (ranks == nullptr ? 1 : ranks->size_of(kRows));
  }
  bool is_adapter() const { return trainer.base() != nullptr; }
};

// Which weights `model.trainable` names; empty: all.
std::vector<bool> TrainedWeights(const TrainSpec& spec, const ModelFiles& files,
                                 const std::vector<engine::WeightSpec>& weights);
// All options except `trained`.
TrainerOptions TrainerOptionsOf(const TrainSpec& spec);
PackerOptions PackerOptionsOf(const TrainSpec& spec, const OpenedData& data);
// Sample i of the data, as data.loss_mask wants it.
Sample MakeSample(const TrainSpec& spec, const OpenedData& data, int64_t i);

// Fills this rank's micro-batches of the next step. All ranks pack all rows, so that a step has the
// same rows for every number of ranks. Returns false at the end of the data.
bool NextBatches(RunParts& parts, std::span<MicroBatch> batches);

// Sets the masters to the initial weights, loaded or drawn, of a run that does not resume.
void InitialWeights(RunParts& parts);

}  // namespace tandem::training
