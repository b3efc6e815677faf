#include <utility>

#include "engine/model/model.h"
#include "engine/model/serving_ops.h"
#include "engine/ops/attention.h"

namespace tandem::engine {

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

KvCache::Shape ModelRunner::KvShape(const Model& model, int64_t n_blocks) {
  return KvShape(model.config(), model.dtype(), n_blocks);
}

KvCache::Shape ModelRunner::KvShape(const ModelConfig& config, DType dtype, int64_t n_blocks) {
  const AttentionSpec& attention = config.attention;
  return {.n_layers = config.n_layers,
          .n_kv_heads = attention.n_kv_heads,
          .head_block_bytes = KvHeadBlockBytes(dtype, attention.head_dim),
          .n_blocks = n_blocks};
}

int64_t ModelRunner::ScratchBytes(const ModelOutline& outline, int64_t max_rows,
                                  int64_t max_logit_rows) {
  return ServingOps::ScratchBytes(
      PlanForward(*outline.family, outline.config, outline.specs, outline.types.dtype), max_rows,
      max_logit_rows);
}

std::span<const float> ModelRunner::Forward(const BatchView& batch, KvCache& kv) {
  return impl_->serving.Run(batch, kv);
}

int64_t ModelRunner::scratch_bytes() const { return impl_->serving.scratch_bytes(); }

}  // namespace tandem::engine
