#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/formats/model_dir.h"
#include "engine/kv/kv_cache.h"
#include "engine/model/batch_view.h"
#include "engine/model/families/family.h"
#include "engine/model/packed_weights.h"
#include "engine/ops/ops_context.h"

namespace tandem::engine {

struct LoadOptions {
  // Compute dtype, f32 or bf16. Unset: f32 if every weight of the checkpoint is f32 and there are
  // fewer than kSmallModelParameters of them, else bf16.
  std::optional<DType> dtype = {};
  // Integer block format for the weights. Linear layers use this format. Embedding tables and the
  // head, whose errors matter most, use int8, or int6 when this is int4. Norms and biases stay f32;
  // compute is bf16.
  BlockFormat block = BlockFormat::kNone;
  int64_t max_context_len = 0;  // lowers the config's; 0 keeps it
  std::filesystem::path cache_dir =
      {};  // packed weights are kept here and mapped; empty: in memory
  int64_t cache_limit_bytes = 64LL << 30;
  // Called while the checkpoint is hashed (with 0) and packed; throws to cancel.
  std::function<void(double fraction)> progress = {};
};

inline constexpr int64_t kSmallModelParameters = 64'000'000;

// Description and memory needs of a model, from its config and tensor headers; no weight is read.
struct ModelOutline {
  const FamilySpec* family = nullptr;
  ModelConfig config;           // untied where has_own_head
  bool has_own_head = false;    // stored_head.h
  int64_t max_context_len = 0;  // the config's, or LoadOptions' when lower
  std::vector<WeightSpec> specs;
  PackedTypes types;
  int64_t weight_bytes = 0;  // packed
  // Without the experts to which a row is not routed.
  int64_t active_parameters = 0;
  int64_t active_weight_bytes = 0;
  int64_t rope_bytes = 0;

  int64_t parameter_count() const;
};
// Throws what Model::Load throws for the same faults.
ModelOutline OutlineModel(const ModelDir& dir, const LoadOptions& options);

// A model ready to run: configuration and packed weights. Immutable; the engine and tools share it.
class Model {
 public:
  // Validates the config and every weight's shape against the family's list before packing. Throws
  // kUnsupported / kDataLoss naming file and field or tensor.
  static std::shared_ptr<const Model> Load(const ModelDir& dir, const LoadOptions& options,
                                           OpsContext& ops);
  // REQUIRES: `outline` is of this directory and these options.
  static std::shared_ptr<const Model> Load(const ModelDir& dir, ModelOutline outline,
                                           const LoadOptions& options, OpsContext& ops);

  const ModelConfig& config() const { return config_; }
  const FamilySpec& family() const { return *family_; }
  const std::vector<WeightSpec>& weight_specs() const { return specs_; }
  const Weights& weights() const { return weights_; }
  DType dtype() const { return dtype_; }  // of compute
  // How the weights are stored: the compute dtype, "int8" or "int4". If the file's own blocks chose
  // the format of each weight: "gguf" and these formats, such as "gguf-int4-int8".
  const std::string& weights_type() const { return weights_type_; }
  const std::vector<RopeTable>& ropes() const { return ropes_; }
  // Identifies weights, their type and the arithmetic; part of system_fingerprint and of the
  // prefix-cache salt.
  const std::string& fingerprint() const { return fingerprint_; }
  // SHA-256 (hex) of the checkpoint's weights (ModelDir::ContentHash).
  const std::string& content_hash() const { return content_hash_; }
  int64_t parameter_count() const;
  int64_t weight_bytes() const { return weight_bytes_; }
  // As in ModelOutline.
  int64_t active_parameters() const { return active_parameters_; }
  int64_t active_weight_bytes() const { return active_weight_bytes_; }
  int64_t rope_bytes() const { return rope_bytes_; }
  bool is_mapped() const { return mapped_ != nullptr; }  // packed file shared between processes
  std::filesystem::path packed_path() const;             // empty: packed in memory
  // True after a mapped weight could not be read and zeros were computed instead. Any thread.
  bool is_damaged() const;

 private:
  Model() = default;

  ModelConfig config_;
  const FamilySpec* family_ = nullptr;
  std::vector<WeightSpec> specs_;
  Weights weights_;
  DType dtype_ = DType::kBF16;
  std::string weights_type_;
  std::vector<RopeTable> ropes_;
  std::string fingerprint_;
  std::string content_hash_;
  int64_t weight_bytes_ = 0;
  int64_t active_parameters_ = 0;
  int64_t active_weight_bytes_ = 0;
  int64_t rope_bytes_ = 0;
  std::shared_ptr<const MappedFile> mapped_;
  AlignedBuffer owned_;
};

// Runs a model's forward pass for serving. Owned by the thread that calls it; no allocation after
// construction.
class ModelRunner {
 public:
  ModelRunner(std::shared_ptr<const Model> model, OpsContext& ops, int64_t max_rows,
              int64_t max_logit_rows);
  ~ModelRunner();

  // Shape of a KV cache for this model: what the attentions of its forward pass keep, in one table.
  static KvCache::Shape KvShape(const Model& model, int64_t n_blocks,
                                KvFormat format = KvFormat::kCompute);
  // The same without blocks, in tables by window, for sequences of at most max_model_len tokens
  // (engine/model/kv_layout.h).
  static KvCache::Shape WindowedKvShape(const Model& model, int64_t max_model_len,
                                        KvFormat format = KvFormat::kCompute);
  static KvCache::Shape WindowedKvShape(const ModelOutline& outline,
                                        KvFormat format = KvFormat::kCompute);
  // Floats of one sequence's state in layers with state; 0 for models without any (StateCache).
  static int64_t StateFloats(const Model& model);
  static int64_t StateFloats(const ModelOutline& outline);
  // The scratch_bytes() of a runner with these limits.
  static int64_t ScratchBytes(const ModelOutline& outline, int64_t max_rows,
                              int64_t max_logit_rows);

  // Computes the rows, writing their keys and values into `kv`. Returns logits
  // [logit_rows, vocab_size] (f32), valid until the next call.
  std::span<const float> Forward(const BatchView& batch, KvCache& kv);

  int64_t scratch_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::engine
