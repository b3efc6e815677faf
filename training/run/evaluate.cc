#include "training/run/evaluate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "engine/base/error.h"
#include "engine/base/thread_pool.h"
#include "engine/kernels/kernels.h"
#include "engine/model/model.h"
#include "training/lora/lora.h"
#include "training/setup/run_parts.h"
#include "training/setup/validation_set.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

// Loads the adapter's matrices as parameters on top of the base.
EvaluationResult WithAdapter(const TrainSpec& spec, std::shared_ptr<const engine::Model> base,
                             const fs::path& dir, std::span<const MicroBatch> batches,
                             engine::OpsContext& ops) {
  std::vector<LoraTarget> targets =
      LoraTargetsOf(engine::LoraAdapter::Open(dir), base->family(), base->config());
  Trainer trainer(std::move(base), std::move(targets), TrainerOptionsOf(spec), ops);
  const fs::path weights = dir / "adapter_model.safetensors";
  trainer.parameters().LoadFrom(engine::SafetensorsFile::Open(weights), weights.string());
  trainer.MastersChanged();
  return trainer.Evaluate(batches);
}

// Evaluates the served weights with a program that trains none: no masters, gradients or moments.
EvaluationResult OfModel(const TrainSpec& spec, const engine::Model& model,
                         std::span<const MicroBatch> batches, engine::OpsContext& ops) {
  TrainerOptions options = TrainerOptionsOf(spec);
  options.trained.assign(model.weights().size(), false);
  const Program program =
      Record(model.family(), model.config(), RecordingOf(options, model.dtype(), {}));
  const auto ropes = engine::MakeRopeTables(model.family(), model.config(), options.row_length);
  const std::vector<float*> gradients(model.weights().size(), nullptr);
  Executor executor(program, ops, ropes, model.weights(), gradients);
  return EvaluateBatches(executor, batches);
}

}  // namespace

Evaluation EvaluateModel(const TrainSpec& given, const fs::path& adapter,
                         const fs::path& cache_dir) {
  if (given.is_dpo()) {
    throw Error(ErrorCode::kInvalidArgument,
                "kind: eval does not support train.dpo: set data.eval and train.eval_interval in "
                "the run, or evaluate text or examples with --data and kind=train.sft");
  }
  TrainSpec spec = given;
  ThreadPool pool(static_cast<int>(spec.resources.threads));
  engine::OpsContext ops(engine::Kernels(), pool);
  engine::LoadOptions load;
  load.dtype = spec.compute;
  load.cache_dir = cache_dir;
  const engine::ModelDir dir = engine::ModelDir::Open(spec.model.load_parameters_path);
  if (!spec.origins.contains("data.max_target_length")) {
    const int64_t context = engine::OutlineModel(dir, load).max_context_len;
    spec.data.max_target_length = std::min(spec.data.max_target_length, context);
  }
  const ModelFiles files = LoadModelFiles(spec);
  const ValidationSet validation(spec, files, pool);

  const auto model = engine::Model::Load(dir, load, ops);
  const EvaluationResult result =
      adapter.empty() ? OfModel(spec, *model, validation.batches(), ops)
                      : WithAdapter(spec, model, adapter, validation.batches(), ops);
  if (result.total_weights == 0) {
    throw Error(ErrorCode::kInvalidArgument, spec.data.eval.string() + ": has no token to predict");
  }
  Evaluation evaluation;
  evaluation.loss = result.loss;
  evaluation.perplexity = std::exp(result.loss);
  evaluation.accuracy = result.accuracy;
  evaluation.bits_per_byte =
      validation.bytes() > 0 ? result.weighted_loss / std::log(2.0) / validation.bytes() : 0;
  evaluation.tokens = static_cast<int64_t>(result.total_weights);
  return evaluation;
}

}  // namespace tandem::training
