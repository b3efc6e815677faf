#include <utility>

#include "engine/model/kv_layout.h"
#include "engine/model/model.h"
#include "engine/model/serving_ops.h"

namespace tandem::engine {
namespace {

ForwardPlan PlanOf(const Model& model) {
  return PlanForward(model.family(), model.config(), model.weight_specs(), model.dtype());
}

ForwardPlan PlanOf(const ModelOutline& outline) {
  return PlanForward(*outline.family, outline.config, outline.specs, outline.types.dtype);
}

}  // namespace

struct ModelRunner::Impl {
  Impl(std::shared_ptr<const Model> model_in, OpsContext& ops, int64_t max_rows,
       int64_t max_logit_rows)
      : model(std::move(model_in)), serving(*model, ops, max_rows, max_logit_rows) {}

  const std::shared_ptr<const Model> model;
  ServingOps serving;
};

ModelRunner::ModelRunner(std::shared_ptr<const Model> model, OpsContext& ops, int64_t max_rows,
                         int64_t max_logit_rows)
    : impl_(std::make_unique<Impl>(std::move(model), ops, max_rows, max_logit_rows)) {}

ModelRunner::~ModelRunner() = default;

KvCache::Shape ModelRunner::KvShape(const Model& model, int64_t n_blocks, KvFormat format) {
  KvCache::Shape shape = KvInOneTable(PlanOf(model).kv_layers, model.dtype(), format);
  shape.n_blocks = n_blocks;
  return shape;
}

KvCache::Shape ModelRunner::WindowedKvShape(const Model& model, int64_t max_model_len,
                                            KvFormat format) {
  return LayOutKv(PlanOf(model).kv_layers, model.dtype(), max_model_len, format);
}

KvCache::Shape ModelRunner::WindowedKvShape(const ModelOutline& outline, KvFormat format) {
  return LayOutKv(PlanOf(outline).kv_layers, outline.types.dtype, outline.max_context_len, format);
}

int64_t ModelRunner::StateFloats(const Model& model) { return PlanOf(model).state_floats; }

int64_t ModelRunner::StateFloats(const ModelOutline& outline) {
  return PlanOf(outline).state_floats;
}

int64_t ModelRunner::ScratchBytes(const ModelOutline& outline, int64_t max_rows,
                                  int64_t max_logit_rows) {
  return ServingOps::ScratchBytes(PlanOf(outline), max_rows, max_logit_rows);
}

std::span<const float> ModelRunner::Forward(const BatchView& batch, KvCache& kv) {
  return impl_->serving.Run(batch, kv);
}

int64_t ModelRunner::scratch_bytes() const { return impl_->serving.scratch_bytes(); }

}  // namespace tandem::engine
