#include "engine/model/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/io/sha256.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/kernels.h"
#include "engine/model/find_weight.h"
#include "engine/model/packed_weights.h"
#include "engine/model/plan_ops.h"
#include "engine/model/stored_head.h"
#include "engine/model/stored_weights.h"

namespace tandem::engine {
namespace {

// Part of every fingerprint. Raise it when the same weights and kernels compute different bits.
constexpr const char* kArithmeticVersion = "tandem-2";
constexpr size_t kContentHashLength = 64;  // SHA-256 in hexadecimal

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

// Buffers of old checkpoints (rope frequencies, GPT-2's masks), and the second copy of a tied head.
bool IsHarmlessExtra(const std::string& name, const ModelConfig& config) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn_rot_embd.weight") || name.ends_with(".attn.masked_bias") ||
         (config.tied_embeddings && name == "lm_head.weight");
}

// Whether an unused tensor would take part in another program's forward pass. True for tensors of a
// block or of the head, by their name in the file or their mapped name.
bool TakesPart(const ModelDir& dir, const std::string& name) {
  if (dir.format() == "hf" || dir.format() == "native") return false;
  constexpr auto kPrefixes = std::to_array<std::string_view>(
      {"blk.", "output", "model.", "h.", "ln_f.", "wte.", "wpe.", "lm_head."});
  return std::any_of(kPrefixes.begin(), kPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// Names in the file that no weight uses.
std::vector<std::string> ExtraTensors(const ModelDir& dir, const std::vector<WeightSpec>& specs) {
  std::vector<std::string> known;
  for (const WeightSpec& spec : specs) {
    known.push_back(spec.name);
    known.insert(known.end(), spec.aliases.begin(), spec.aliases.end());
    for (const StoredPart& part : spec.parts) known.push_back(part.tensor);
  }
  std::sort(known.begin(), known.end());
  std::vector<std::string> extra = dir.tensor_names();
  std::erase_if(extra, [&](const std::string& name) {
    return std::binary_search(known.begin(), known.end(), name);
  });
  return extra;
}

void CheckTensors(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                  const ModelConfig& config) {
  for (const WeightSpec& spec : specs) {
    const std::optional<StoredTensor> stored = FindWeight(dir, spec);
    const std::string what = dir.name() + ": tensor '" + spec.name + "' ";
    if (!stored) throw Error(ErrorCode::kDataLoss, what + "is missing");
    const ConstTensorView& tensor = stored->view;
    if (tensor.shape != spec.source_shape) {
      throw Error(ErrorCode::kDataLoss, what + "has shape " + ShapeText(tensor.shape) +
                                            ", but config.json requires " +
                                            ShapeText(spec.source_shape));
    }
    if (!IsFloat(tensor.dtype)) {
      throw Error(ErrorCode::kUnsupported, what + "has type " +
                                               std::string(DTypeName(tensor.dtype)) +
                                               "; only floating-point weights are supported");
    }
  }
  for (const auto& [name, stacked] : StackedTensorsOf(specs, /*published=*/false)) {
    const StoredTensor* stored = dir.FindStored(name);
    if (stored == nullptr || stored->view.shape == stacked.shape) continue;
    throw Error(ErrorCode::kDataLoss, dir.name() + ": tensor " + Quoted(name) + " has shape " +
                                          ShapeText(stored->view.shape) +
                                          ", but config.json requires " + ShapeText(stacked.shape));
  }
  for (const std::string& name : ExtraTensors(dir, specs)) {
    if (IsHarmlessExtra(name, config) || !TakesPart(dir, name)) continue;
    throw Error(ErrorCode::kUnsupported, dir.name() + ": tensor " + Quoted(name) +
                                             " is not a weight of this model family, so the model "
                                             "would compute a different function without it");
  }
}

std::string StoredTypeText(const StoredTensor& tensor) {
  return std::string(tensor.encoding == Encoding::kPlain ? DTypeName(tensor.view.dtype)
                                                         : EncodingName(tensor.encoding));
}

// No program writes the experts of one projection in several types, so such a checkpoint was put
// together from several. REQUIRES: CheckTensors.
void CheckExpertTypes(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                      const ForwardPlan& plan) {
  for (const ForwardPlan::Op& op : plan.ops) {
    if (op.n_experts == 0) continue;
    const auto begin = static_cast<size_t>(op.weight);
    const std::string expected = StoredTypeText(*FindWeight(dir, specs[begin]));
    for (size_t i = begin + 1; i < begin + static_cast<size_t>(op.n_experts); ++i) {
      const std::string type = StoredTypeText(*FindWeight(dir, specs[i]));
      if (type == expected) continue;
      throw Error(ErrorCode::kDataLoss, dir.name() + ": tensor " + Quoted(specs[i].name) +
                                            " has type " + type + ", but " +
                                            Quoted(specs[begin].name) + " has " + expected +
                                            "; the experts of a layer must have one type");
    }
  }
}

void ReportExtraTensors(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                        const ModelConfig& config) {
  int64_t n_harmless = 0, n_unknown = 0;
  std::string first_unknown;
  for (const std::string& name : ExtraTensors(dir, specs)) {
    if (IsHarmlessExtra(name, config)) {
      ++n_harmless;
    } else if (n_unknown++ == 0) {
      first_unknown = name;
    }
  }
  if (n_harmless > 0) {
    spdlog::debug("ignored buffers in checkpoint model={} n={}", dir.name(), n_harmless);
  }
  if (n_unknown == 0) return;
  const std::string source = dir.Describe("config.json");
  const auto json = ParseUntrustedJson(dir.ReadText("config.json").value_or("{}"), source);
  if (IsMultimodal(json, source)) {
    spdlog::warn("serving only the text part of a multimodal model={} ignored_tensors={} first={}",
                 dir.name(), n_unknown, first_unknown);
  } else {
    // The model may differ from its config; this line lets a user who gets odd answers find out.
    spdlog::warn("ignored tensors that this family does not use model={} n={} first={}", dir.name(),
                 n_unknown, first_unknown);
  }
}

int64_t CountParameters(const std::vector<WeightSpec>& specs) {
  int64_t count = 0;
  for (const WeightSpec& spec : specs) count += spec.n * spec.k;
  return count;
}

DType ChooseDType(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                  const LoadOptions& options) {
  const std::optional<DType> wanted = options.dtype;
  if (options.block != BlockFormat::kNone) {
    if (!wanted || *wanted == DType::kBF16) return DType::kBF16;
    throw Error(ErrorCode::kUnsupported, std::string(BlockFormatName(options.block)) +
                                             " weights compute in bf16, not in " +
                                             std::string(DTypeName(*wanted)));
  }
  if (wanted) {
    if (*wanted == DType::kF32 || *wanted == DType::kBF16) return *wanted;
    throw Error(ErrorCode::kUnsupported,
                "compute dtype must be f32 or bf16, got " + std::string(DTypeName(*wanted)));
  }
  const bool all_f32 = std::all_of(specs.begin(), specs.end(), [&](const WeightSpec& spec) {
    const std::optional<StoredTensor> stored = FindWeight(dir, spec);
    return stored->encoding == Encoding::kPlain && stored->view.dtype == DType::kF32;
  });
  return all_f32 && CountParameters(specs) < kSmallModelParameters ? DType::kF32 : DType::kBF16;
}

// Chooses types by the file's own blocks, weight by weight. A dtype requested by the user takes
// precedence. Returns false when the file has no blocks.
bool TakeBlocksOfFile(const ModelDir& dir, const std::vector<WeightSpec>& specs,
                      const LoadOptions& options, PackedTypes& types) {
  if (options.dtype || options.block != BlockFormat::kNone) return false;
  types.exact.resize(specs.size(), false);
  std::set<std::string> formats;
  for (size_t i = 0; i < specs.size(); ++i) {
    const std::optional<StoredTensor> stored = FindWeight(dir, specs[i]);
    if (stored->encoding == Encoding::kPlain || specs[i].kind == WeightKind::kVector) continue;
    const Repacking repacking = RepackingOf(*stored);
    types.blocks[i] = repacking.block;
    types.exact[i] = repacking.exact;
    formats.insert(BlockFormatName(repacking.block));
  }
  if (formats.empty()) return false;
  types.name = dir.format() == "gguf" ? "gguf" : "file";
  for (const std::string& format : formats) types.name += "-" + format;
  return true;
}

// Format of tables and the head when matrices are rounded to `block`. Int6 loses little of int8's
// accuracy, and one token of a small model reads a tenth less.
BlockFormat HeadFormat(BlockFormat block) {
  return block == BlockFormat::kInt4 ? BlockFormat::kInt6 : BlockFormat::kInt8;
}

// The storage type of each weight; only the plan of the forward pass tells which weight is the head
// and which are routers. A router stays in the compute dtype: its errors change which experts run.
PackedTypes ChooseTypes(const ModelDir& dir, const FamilySpec& family, const ModelConfig& config,
                        const std::vector<WeightSpec>& specs, DType dtype,
                        const LoadOptions& options) {
  const BlockFormat block = options.block;
  PackedTypes types{.dtype = dtype, .name = std::string(DTypeName(dtype)), .blocks = {}};
  types.blocks.resize(specs.size(), BlockFormat::kNone);
  if (TakeBlocksOfFile(dir, specs, options, types) || block == BlockFormat::kNone) return types;
  types.name = BlockFormatName(block);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind == WeightKind::kMatrix) types.blocks[i] = block;
    if (specs[i].kind == WeightKind::kEmbedding) types.blocks[i] = HeadFormat(block);
  }
  const ForwardPlan plan = PlanForward(family, config, specs, dtype);
  types.blocks[static_cast<size_t>(plan.ops.back().weight)] = HeadFormat(block);
  for (const int32_t router : plan.Routers()) {
    types.blocks[static_cast<size_t>(router)] = BlockFormat::kNone;
  }
  return types;
}

void CountActive(const PackedLayout& layout, ModelOutline& outline) {
  const std::vector<double> shares =
      PlanForward(*outline.family, outline.config, outline.specs, outline.types.dtype)
          .ActiveShares(outline.specs.size());
  double parameters = 0, bytes = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    parameters += shares[i] * static_cast<double>(outline.specs[i].n * outline.specs[i].k);
    bytes += shares[i] * static_cast<double>(layout.sizes[i]);
  }
  outline.active_parameters = std::llround(parameters);
  outline.active_weight_bytes = std::llround(bytes);
}

// The longest context whose rope does not change shorter texts.
int64_t DefaultContext(const ModelConfig& config) {
  const RopeScaling& rope = config.rope_scaling;
  return rope.kind == RopeKind::kLong ? rope.original_max_positions : config.max_context_len;
}

// Names the choice among rope frequencies that depends on the longest text: LongRoPE's long factors
// change the keys of short texts, too.
std::string RopeChoice(const ModelConfig& config, int64_t max_context_len) {
  const RopeScaling& rope = config.rope_scaling;
  const bool is_long =
      rope.kind == RopeKind::kLong && max_context_len > rope.original_max_positions;
  return is_long ? "\nlong factors" : "";
}

}  // namespace

ModelOutline OutlineModel(const ModelDir& dir, const LoadOptions& options) {
  const std::string source = dir.Describe("config.json");
  const std::optional<std::string> text = dir.ReadText("config.json");
  if (!text) throw Error(ErrorCode::kNotFound, source + " is missing");
  const nlohmann::ordered_json json = ParseUntrustedJson(*text, source);

  ModelOutline outline;
  outline.family = &FindFamily(json, source);
  outline.config = ParseModelConfig(*outline.family, json, source);
  outline.has_own_head = HasOwnHead(dir, *outline.family, outline.config);
  if (outline.has_own_head) outline.config.tied_embeddings = false;
  outline.specs = outline.family->list_weights(outline.config);
  CheckTensors(dir, outline.specs, outline.config);
  const DType dtype = ChooseDType(dir, outline.specs, options);
  CheckExpertTypes(dir, outline.specs,
                   PlanForward(*outline.family, outline.config, outline.specs, dtype));
  outline.types = ChooseTypes(dir, *outline.family, outline.config, outline.specs, dtype, options);
  for (const WeightSpec& spec : outline.specs) {
    const std::optional<StoredTensor> stored = FindWeight(dir, spec);
    const bool is_plain = stored->IsAsAsked() && stored->part.empty();
    outline.types.decodings.push_back(is_plain ? "" : DecodingOf(*stored));
  }
  // The size does not depend on the hash, whose length is always the same.
  const PackedLayout layout =
      LayOutWeights(outline.specs, outline.types, std::string(kContentHashLength, '0'));
  outline.weight_bytes = layout.file_bytes;
  CountActive(layout, outline);
  ModelConfig lowered = outline.config;
  const int64_t asked =
      options.max_context_len > 0 ? options.max_context_len : DefaultContext(outline.config);
  lowered.max_context_len = std::min(lowered.max_context_len, asked);
  outline.max_context_len = lowered.max_context_len;
  for (const RopeSpec& rope : outline.family->list_ropes(lowered)) {
    const auto row_bytes = static_cast<int64_t>(2 * rope.frequencies.size() * sizeof(float));
    outline.rope_bytes =
        CheckedAdd(outline.rope_bytes, CheckedMul(row_bytes, outline.max_context_len, "rope table"),
                   "rope tables");
  }
  return outline;
}

int64_t ModelOutline::parameter_count() const { return CountParameters(specs); }

std::shared_ptr<const Model> Model::Load(const ModelDir& dir, const LoadOptions& options,
                                         OpsContext& ops) {
  return Load(dir, OutlineModel(dir, options), options, ops);
}

std::shared_ptr<const Model> Model::Load(const ModelDir& dir, ModelOutline outline,
                                         const LoadOptions& options, OpsContext& ops) {
  ReportExtraTensors(dir, outline.specs, outline.config);
  if (outline.has_own_head) {
    spdlog::warn("model_has_own_head model=\"{}\" reason=\"{}\"", dir.name(), kOwnHeadNote);
  }
  const PackedTypes& types = outline.types;
  if (options.max_context_len == 0 && outline.max_context_len < outline.config.max_context_len) {
    spdlog::warn(
        "context_shortened model=\"{}\" max_model_len={} reason=\"longer texts need other "
        "rope frequencies, which change short texts too: --max-model-len {} selects them\"",
        dir.name(), outline.max_context_len, outline.config.max_context_len);
  }

  const std::shared_ptr<Model> model(new Model());
  const std::filesystem::path memo_dir =
      options.cache_dir.empty() ? std::filesystem::path() : options.cache_dir / "hashes";
  const auto keep_alive = [&] {
    if (options.progress) options.progress(0);
  };
  model->content_hash_ = dir.ContentHash(memo_dir, keep_alive);
  TANDEM_CHECK(model->content_hash_.size() == kContentHashLength);
  model->family_ = outline.family;
  model->config_ = std::move(outline.config);
  model->specs_ = std::move(outline.specs);
  model->dtype_ = types.dtype;
  model->weights_type_ = types.name;
  model->rope_bytes_ = outline.rope_bytes;
  Sha256 identity;
  identity.Update(std::string(kArithmeticVersion) + "\n" +
                  std::string(ArithmeticOf(ops.kernels())) + "\n" + types.name + "\n" +
                  model->content_hash_ + "\n" +
                  model->family_->write_config(model->config_).dump() +
                  RopeChoice(model->config_, outline.max_context_len));
  model->fingerprint_ = ToHex(identity.Finish()).substr(0, 32);

  const std::string tensor_hash = dir.TensorHash(memo_dir, keep_alive);
  dir.CheckUnchanged();
  const PackedLayout layout = LayOutWeights(model->specs_, types, tensor_hash);
  PackedWeights packed =
      LoadPackedWeights(dir, model->specs_, types, layout,
                        {options.cache_dir, options.cache_limit_bytes, options.progress}, ops);
  model->weights_ = std::move(packed.weights);
  model->mapped_ = std::move(packed.mapped);
  model->owned_ = std::move(packed.owned);
  model->weight_bytes_ = layout.file_bytes;
  model->active_parameters_ = outline.active_parameters;
  model->active_weight_bytes_ = outline.active_weight_bytes;
  model->config_.max_context_len = outline.max_context_len;
  model->ropes_ = MakeRopeTables(*model->family_, model->config_, model->config_.max_context_len);
  return model;
}

bool Model::is_damaged() const { return mapped_ != nullptr && mapped_->is_damaged(); }

std::filesystem::path Model::packed_path() const {
  return mapped_ == nullptr ? std::filesystem::path() : mapped_->path();
}

int64_t Model::parameter_count() const { return CountParameters(specs_); }

}  // namespace tandem::engine
