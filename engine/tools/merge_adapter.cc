#include "engine/tools/merge_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/disk_full.h"
#include "engine/formats/safetensors/safetensors_stream.h"
#include "engine/formats/stored/stored_tensor.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"
#include "engine/model/adapter.h"
#include "engine/model/find_weight.h"
#include "engine/model/model.h"
#include "engine/model/stored_head.h"
#include "engine/ops/parallel.h"
#include "engine/tensor/round.h"
#include "engine/tools/logit_distance.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kComparedTokens = 48;

// The base's config and weight list, read from its files.
struct Source {
  const FamilySpec* family = nullptr;
  ModelConfig config;
  std::vector<WeightSpec> specs;
};

Source ReadSource(const ModelDir& dir) {
  const std::string name = dir.Describe("config.json");
  const auto json = ParseUntrustedJson(dir.ReadText("config.json").value_or(""), name);
  Source source;
  source.family = &FindFamily(json, name);
  source.config = ParseModelConfig(*source.family, json, name);
  if (HasOwnHead(dir, *source.family, source.config)) source.config.tied_embeddings = false;
  source.specs = source.family->list_weights(source.config);
  return source;
}

StoredTensor Stored(const ModelDir& dir, const WeightSpec& spec) {
  std::optional<StoredTensor> tensor = FindWeight(dir, spec);
  if (!tensor) {
    throw Error(ErrorCode::kDataLoss, dir.name() + ": tensor " + spec.name + " is missing");
  }
  return *std::move(tensor);
}

// A row-major f32 copy [rows, cols] of a tensor of any floating-point type, or its transpose.
std::vector<float> Values(const ConstTensorView& view, bool transposed) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  ConvertToF32(view, values);
  if (!transposed) return values;
  const auto rows = static_cast<size_t>(view.shape[0]), cols = static_cast<size_t>(view.shape[1]);
  std::vector<float> out(values.size());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) out[c * rows + r] = values[r * cols + c];
  }
  return out;
}

// values[rows, cols] += scale left[rows, rank] . right[rank, cols], each sum in rank order.
void AddProduct(OpsContext& ops, const std::vector<float>& left, const std::vector<float>& right,
                int64_t rank, float scale, int64_t rows, int64_t cols, float* values) {
  ReserveWorkerScratch(ops, static_cast<size_t>(cols) * sizeof(float));
  ParallelRows(ops, rows, cols * rank, [&](int64_t first, int64_t count, int worker) {
    auto* sum = reinterpret_cast<float*>(
        ops.WorkerScratch(worker, static_cast<size_t>(cols) * sizeof(float)));
    for (int64_t row = first; row < first + count; ++row) {
      std::fill_n(sum, cols, 0.0f);
      for (int64_t r = 0; r < rank; ++r) {
        const float factor = left[static_cast<size_t>(row * rank + r)];
        const float* from = right.data() + r * cols;
        for (int64_t c = 0; c < cols; ++c) sum[c] += factor * from[c];
      }
      float* to = values + row * cols;
      for (int64_t c = 0; c < cols; ++c) to[c] += scale * sum[c];
    }
  });
}

// values = magnitude * values / length, for each output of a weight in the checkpoint's layout.
void ScaleToMagnitude(const ConstTensorView& magnitude, const WeightSpec& spec,
                      std::vector<float>& values) {
  const std::vector<float> wanted = Values(magnitude, false);
  const bool out_in = spec.layout == SourceLayout::kOutIn;
  for (int64_t n = 0; n < spec.n; ++n) {
    const auto at = [&](int64_t k) -> float& {
      return values[static_cast<size_t>(out_in ? n * spec.k + k : k * spec.n + n)];
    };
    double squares = 0;
    for (int64_t k = 0; k < spec.k; ++k) squares += static_cast<double>(at(k)) * at(k);
    if (squares == 0) continue;
    const double factor = static_cast<double>(wanted[static_cast<size_t>(n)]) / std::sqrt(squares);
    for (int64_t k = 0; k < spec.k; ++k) at(k) = static_cast<float>(factor * at(k));
  }
}

// Adds the module's part to the weight, in the checkpoint's layout.
void AddModule(OpsContext& ops, const LoraModule& module, const WeightSpec& spec,
               std::vector<float>& values) {
  // A table [rows, columns] gets A^T B^T, as a linear layer stored [in, out] does.
  const bool out_in = spec.layout == SourceLayout::kOutIn && !module.is_embedding;
  const std::vector<float> left = Values(out_in ? module.b : module.a, !out_in);
  const std::vector<float> right = Values(out_in ? module.a : module.b, !out_in);
  const bool swaps = !out_in && !module.is_embedding;
  AddProduct(ops, left, right, module.rank, module.scale, swaps ? spec.k : spec.n,
             swaps ? spec.n : spec.k, values.data());
  if (module.magnitude.data != nullptr) ScaleToMagnitude(module.magnitude, spec, values);
}

// Throws kUnsupported when the adapter changes one use of a tied table: a merge would change both.
void RefuseTied(const LoraAdapter& adapter, const Source& source,
                const std::vector<AdaptedWeight>& weights) {
  if (!source.config.tied_embeddings) return;
  for (const AdaptedWeight& found : weights) {
    if (found.use != WeightUse::kEmbedding && !found.is_head()) continue;
    throw Error(ErrorCode::kUnsupported,
                adapter.name() +
                    ": changes the embeddings or the head of a model that ties both, "
                    "so a merge would change the other too: serve the adapter beside "
                    "its base");
  }
}

// Produces the weights of the merged model, one after the other.
class Merger {
 public:
  Merger(const ModelDir& base, const LoraAdapter& adapter, const MergeOptions& options,
         OpsContext& ops)
      : base_(base), adapter_(adapter), options_(options), ops_(ops), source_(ReadSource(base)) {
    modules_.resize(source_.specs.size());
    const auto weights = FindModules(adapter, *source_.family, source_.config, source_.specs);
    RefuseTied(adapter, source_, weights);
    for (size_t i = 0; i < weights.size(); ++i) {
      modules_[static_cast<size_t>(weights[i].weight)] = &adapter.modules()[i];
    }
    saved_.resize(source_.specs.size());
    const auto saved = FindSaved(adapter, *source_.family, source_.config, source_.specs);
    RefuseTied(adapter, source_, saved);
    for (size_t i = 0; i < saved.size(); ++i) {
      saved_[static_cast<size_t>(saved[i].weight)] = &adapter.saved()[i];
    }
    for (const WeightSpec& spec : source_.specs) {
      const StoredTensor stored = Stored(base, spec);
      const DType dtype = options.dtype.value_or(stored.view.dtype);
      tensors_.push_back({spec.name, {nullptr, dtype, spec.source_shape}});
      bytes_ += static_cast<int64_t>(tensors_.back().view.bytes());
    }
  }

  int64_t bytes() const { return bytes_; }
  int64_t n_tensors() const { return static_cast<int64_t>(tensors_.size()); }
  // The dtype of the first adapted weight; checkpoints have one type for all matrices.
  DType dtype() const {
    const auto first = std::find_if(modules_.begin(), modules_.end(),
                                    [](const LoraModule* module) { return module != nullptr; });
    if (first == modules_.end()) return tensors_.front().view.dtype;
    return tensors_[static_cast<size_t>(first - modules_.begin())].view.dtype;
  }

  void Write(const fs::path& path) {
    WriteSafetensors(path, tensors_, {{"format", "pt"}},
                     [this](const NamedTensor& tensor) { return BytesOf(tensor); });
    if (read_) base_.LetGo(*read_);
  }

 private:
  std::span<const std::byte> BytesOf(const NamedTensor& tensor) {
    if (read_) base_.LetGo(*read_);
    if (options_.progress) options_.progress(n_read_++, static_cast<int64_t>(tensors_.size()));
    const DType dtype = tensor.view.dtype;
    const auto spec =
        std::find_if(source_.specs.begin(), source_.specs.end(),
                     [&](const WeightSpec& candidate) { return candidate.name == tensor.name; });
    const LoraModule* module = modules_[static_cast<size_t>(spec - source_.specs.begin())];
    const WholeTensor* saved = saved_[static_cast<size_t>(spec - source_.specs.begin())];
    read_ = Stored(base_, *spec);
    const StoredTensor& stored = *read_;
    const bool is_same = stored.IsAsAsked() && stored.view.dtype == dtype;
    if (module == nullptr && saved == nullptr && is_same) return stored.bytes();

    std::vector<float> values =
        saved != nullptr ? Values(saved->view, false) : DecodeTensor(stored);
    if (module != nullptr) AddModule(ops_, *module, *spec, values);
    if (!FitsIn(values, dtype)) {
      throw Error(ErrorCode::kDataLoss, adapter_.name() + ": the merge with tensor '" +
                                            tensor.name + "' of " + base_.name() +
                                            " produces values outside the range of " +
                                            std::string(DTypeName(dtype)));
    }
    RoundTo(dtype, values, &buffer_);
    return buffer_;
  }

  const ModelDir& base_;
  const LoraAdapter& adapter_;
  const MergeOptions& options_;
  OpsContext& ops_;
  const Source source_;
  std::vector<const LoraModule*> modules_;  // by weight; null: none
  std::vector<const WholeTensor*> saved_;   // likewise
  std::vector<NamedTensor> tensors_;        // without data
  int64_t bytes_ = 0;
  std::optional<StoredTensor> read_;
  int64_t n_read_ = 0;
  std::vector<std::byte> buffer_;
};

// Opens the two models one after the other, never together.
void Compare(const ModelDir& base, const LoraAdapter& files, const fs::path& merged,
             const MergeOptions& options, OpsContext& ops, MergeReport* report) {
  const DType compute = report->dtype == "f32" ? DType::kF32 : DType::kBF16;
  LoadOptions load{.dtype = compute, .cache_dir = options.cache_dir};
  if (options.progress) {
    load.progress = [&](double) { options.progress(report->tensors, report->tensors); };
  }
  LogitRecord beside, alone;
  {
    const auto model = Model::Load(base, load, ops);
    const auto adapter = Adapter::Load(files, model, ops);
    const int64_t count = std::min(kComparedTokens, model->config().max_context_len);
    const std::vector<TokenId> tokens = SpreadTokens(model->config().vocab_size, count);
    alone = RecordLogits(model, nullptr, tokens, count, ops);
    beside = RecordLogits(model, adapter.get(), tokens, count, ops);
  }
  const LogitRecord inside = RecordLogits(Model::Load(ModelDir::Open(merged), load, ops), nullptr,
                                          beside.tokens, beside.window, ops);
  double largest = 0;
  for (const float logit : beside.logits) largest = std::max(largest, std::fabs(double{logit}));
  report->positions = beside.window;
  report->max_abs_difference = LargestLogitDifference(inside.logits, beside.logits);
  report->moved_by_adapter = LargestLogitDifference(beside.logits, alone.logits);
  report->bound = MergeBound(compute) * largest;
  // Deep models amplify the rounding of weights. A wrong or missing merge differs by the adapter's
  // whole effect.
  if (compute != DType::kF32) report->bound = std::max(report->bound, report->moved_by_adapter / 2);
  if (report->max_abs_difference <= report->bound) return;
  char text[200];
  std::snprintf(text, sizeof text,
                ": logits of the merged model differ by up to %.3g from base plus adapter; "
                "rounding explains at most %.3g. The merged model is not kept",
                report->max_abs_difference, report->bound);
  throw Error(ErrorCode::kDataLoss, files.name() + text);
}

void RefuseWithoutRoom(const fs::path& parent, int64_t bytes) {
  const int64_t free = FreeDiskBytes(parent);
  if (free >= bytes) return;
  throw Error(ErrorCode::kIo, parent.string() + ": the merged model needs " +
                                  std::to_string(bytes) + " bytes, but " + std::to_string(free) +
                                  " are free")
      .WithReason(kDiskFullReason);
}

}  // namespace

std::string ConfigWithDType(const std::string& config, DType dtype) {
  auto json = ParseUntrustedJson(config, "config.json");
  const char* name = dtype == DType::kBF16  ? "bfloat16"
                     : dtype == DType::kF16 ? "float16"
                     : dtype == DType::kF64 ? "float64"
                                            : "float32";
  auto& field = json[json.contains("dtype") ? "dtype" : "torch_dtype"];
  if (field == name) return config;
  field = name;
  // Hugging Face's formatting; keeps the presence or absence of a final newline.
  return json.dump(2) + (config.ends_with('\n') ? "\n" : "");
}

double MergeBound(DType dtype) { return dtype == DType::kF32 ? 1e-4 : 0.05; }

void RefuseMergeIntoBlocks(const ModelDir& base) {
  for (const WeightSpec& spec : ReadSource(base).specs) {
    const StoredTensor stored = Stored(base, spec);
    if (stored.encoding == Encoding::kPlain) continue;
    throw Error(ErrorCode::kInvalidArgument,
                base.name() + ": tensor " + spec.name + " is quantised (" +
                    std::string(EncodingName(stored.encoding)) +
                    "), so no adapter can be merged into it: merge into the original bf16, f16 or "
                    "f32 checkpoint, or serve the adapter beside this base (lora.base_dtype trains "
                    "with the base in int8 or int4)");
  }
}

MergeReport MergeAdapter(const ModelDir& base, const LoraAdapter& adapter,
                         const MergeOptions& options, const fs::path& dir, OpsContext& ops) {
  RefuseMergeIntoBlocks(base);
  Merger merger(base, adapter, options, ops);
  const fs::path parent = dir.has_parent_path() ? dir.parent_path() : fs::path(".");
  RefuseWithoutRoom(parent, merger.bytes());
  MergeReport report;
  report.dtype = DTypeName(merger.dtype());
  report.layers = static_cast<int64_t>(adapter.modules().size() + adapter.saved().size());
  report.tensors = merger.n_tensors();
  PublishDirectory(
      dir,
      [&](const fs::path& temporary) {
        merger.Write(temporary / "model.safetensors");
        for (const auto& [name, text] : options.texts) {
          WriteFileAtomically(temporary / name,
                              name == "config.json" ? ConfigWithDType(text, merger.dtype()) : text);
        }
        Compare(base, adapter, temporary, options, ops, &report);
        WriteFileAtomically(temporary / "merge.json", MergeReportText(report));
      },
      options.if_there);
  return report;
}

std::string MergeReportText(const MergeReport& report) {
  return nlohmann::ordered_json{{"dtype", report.dtype},
                                {"layers", report.layers},
                                {"compared_positions", report.positions},
                                {"max_abs_difference", report.max_abs_difference},
                                {"bound", report.bound},
                                {"moved_by_adapter", report.moved_by_adapter}}
             .dump(2) +
         "\n";
}

}  // namespace tandem::engine
