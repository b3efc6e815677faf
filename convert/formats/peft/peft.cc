// Extracts the LoRA adapter nearest to the changes that fine-tuning made to a base.
//
// There are two passes over both models in the source's order. The first finds the changed weights,
// so that the file can be laid out. The second factorises each difference and writes its two
// matrices.

#include "convert/formats/peft/peft.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "convert/formats/gguf/gguf_config.h"
#include "convert/formats/peft/peft_numbers.h"
#include "convert/sources/source.h"
#include "convert/sources/tensor_source_open.h"
#include "convert/tensors/source_config.h"
#include "engine/adapter/lora_adapter.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/safetensors/safetensors_stream.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"
#include "engine/model/adapter.h"
#include "engine/model/families/family.h"

namespace tandem::convert {
namespace {

using engine::ConstTensorView;
using engine::DType;
using engine::NamedTensor;
using engine::WeightSpec;
using Bytes = ModelSource::Bytes;

constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr const char* kConfigFile = "adapter_config.json";
constexpr size_t kMostNamed = 8;  // in a warning

Error Refused(const std::string& message, const char* param) {
  return Error(ErrorCode::kInvalidArgument, message).WithParam(param).WithReason("invalid_value");
}

// A model and its configuration.
struct TensorIndex {
  const ModelSource& source;
  const engine::FamilySpec* family = nullptr;
  engine::ModelConfig config = {};

  explicit TensorIndex(const ModelSource& model) : source(model) {
    SourceConfig found = ConfigOf(source);
    family = found.family;
    config = std::move(found.config);
  }
};

std::string ShownShape(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t axis : shape) text += (text.empty() ? "[" : ", ") + std::to_string(axis);
  return text + "]";
}

// Returns the index of a weight's tensor. Refuses a tensor that does not fit; the error names
// `param`.
int64_t IndexOf(const ModelSource& source, const WeightSpec& spec, const char* param) {
  const int64_t found = FindWeight(source, spec);
  const auto refuse = [&](const std::string& what) {
    return Refused(source.name() + ": tensor " + Quoted(spec.name) + what +
                       "; extracting an adapter needs two models with the same tensors",
                   param);
  };
  if (found < 0) throw refuse(" is missing");
  const ConstTensorView& view = source.tensors()[static_cast<size_t>(found)].view;
  if (view.shape != spec.source_shape) {
    throw refuse(" has shape " + ShownShape(view.shape) + ", but the base has " +
                 ShownShape(spec.source_shape));
  }
  const DType t = view.dtype;
  if (t != DType::kF32 && t != DType::kBF16 && t != DType::kF16 && t != DType::kF64) {
    throw refuse(" has type " + std::string(DTypeName(t)) + ", which is not floating point");
  }
  return found;
}

std::string NormText(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

std::unique_ptr<ModelSource> OpenBase(const ConvertSpec& spec) {
  ConvertSpec base;
  base.source = spec.base;
  return OpenSource(base, {});
}

// Whether the source has more exact numbers in f32. A run's checkpoint has masters beside its
// rounded weights; a MaxText checkpoint is in f32, but decoded in the dtype of the lent
// config.json.
bool HasMasters(const ConvertSpec& spec, const ModelSource& source) {
  return source.state() != nullptr || FormOf(spec.source, "source").kind == SourceKind::kMaxText;
}

class Extraction {
 public:
  Extraction(const ConvertSpec& spec, const WriteContext& context)
      : spec_(spec),
        context_(context),
        masters_(HasMasters(spec, context.source) ? OpenSource(spec, DType::kF32) : nullptr),
        base_files_(OpenBase(spec)),
        source_(masters_ ? *masters_ : context.source),
        base_(*base_files_) {
    report_.rank = spec.peft.rank;
    report_.alpha = spec.peft.alpha > 0 ? spec.peft.alpha : static_cast<double>(spec.peft.rank);
    scale_ = engine::LoraScale(report_.alpha, report_.rank, false);
    specs_ = base_.family->list_weights(base_.config);
    if (source_.family != base_.family) {
      throw Refused(source_.source.name() + " and " + base_.source.name() +
                        " belong to different model families: base must be the model that the "
                        "source was tuned from",
                    "source.base");
    }
    const std::vector<bool> linear = engine::LinearWeights(*base_.family, base_.config, specs_);
    for (size_t i = 0; i < specs_.size(); ++i) {
      Weight weight;
      weight.spec = &specs_[i];
      weight.is_linear = linear[i];
      weight.base = IndexOf(base_.source, specs_[i], "source.base");
      by_source_[IndexOf(source_.source, specs_[i], "source.base")] = i;
      weights_.push_back(weight);
    }
  }

  PeftReport Write() {
    ForEach([](const Weight&) { return true; },
            [&](Weight& weight, const WeightDifference& difference) {
              const Norms norms = difference.Measure();
              if (!std::isfinite(norms.change2) || !std::isfinite(norms.base2)) {
                throw Error(ErrorCode::kDataLoss,
                            source_.source.name() + ": tensor " + Quoted(weight.spec->name) +
                                " differs from the base by values that are not finite");
              }
              weight.norms = norms;
            });
    CheckChanges();
    Warn();
    LayOut();
    ForEach([](const Weight& weight) { return weight.HasModule(); },
            [&](Weight& weight, const WeightDifference& difference) { Take(weight, difference); });
    Finish();
    return Report();
  }

 private:
  struct Weight {
    const WeightSpec* spec = nullptr;
    int64_t base = -1;  // index of the base's tensor
    bool is_linear = false;
    Norms norms = {};
    double error2 = 0;
    int64_t a_offset = 0, b_offset = 0;  // in the file
    engine::Sha256Digest a_hash = {}, b_hash = {};

    bool HasModule() const { return is_linear && norms.change2 > 0; }
    int64_t LargestRank() const { return std::min(spec->n, spec->k); }
    std::string path() const { return engine::ModulePath(*spec); }
  };

  // Visits each wanted weight together with the base's, in the source's order.
  template <typename Wanted, typename Visit>
  void ForEach(const Wanted& wanted, const Visit& visit) {
    const ModelSource& source = source_.source;
    for (int64_t part = 0; part < source.parts(); ++part) {
      bool is_wanted = false;
      int64_t bytes = 0;
      for (const int64_t index : source.TensorsOf(part)) {
        const auto found = by_source_.find(index);
        is_wanted = is_wanted || (found != by_source_.end() && wanted(weights_[found->second]));
        bytes += static_cast<int64_t>(
            context_.source.tensors()[static_cast<size_t>(index)].view.bytes());
      }
      // The two passes stand for the writing and comparing of other formats.
      context_.advance(spec_.verify ? bytes : bytes / 2);
      if (!is_wanted) continue;
      source.ReadPart(part, [&](const NamedTensor& tensor, Bytes data) {
        const auto found = by_source_.find(source.Find(tensor.name));
        if (found == by_source_.end() || !wanted(weights_[found->second])) return;
        Weight& weight = weights_[found->second];
        std::vector<std::byte> buffer;
        const Bytes base = base_.source.Read(weight.base, &buffer);
        const ConstTensorView& base_view =
            base_.source.tensors()[static_cast<size_t>(weight.base)].view;
        visit(weight, WeightDifference(tensor.view, data, base_view, base, context_.ops.pool()));
        base_.source.LetGo(weight.base);
      });
    }
  }

  void CheckChanges() const {
    const std::string both = source_.source.name() + " and " + base_.source.name();
    const auto differs = [](const Weight& weight) { return weight.norms.change2 > 0; };
    if (std::none_of(weights_.begin(), weights_.end(), differs)) {
      throw Refused(both + " have the same weights, so there is no adapter to extract",
                    "source.base");
    }
    // Smaller modules, such as a gate with one output, get factors padded with zeros.
    const Weight* largest = nullptr;
    for (const Weight& weight : weights_) {
      if (!weight.HasModule()) continue;
      if (largest == nullptr || weight.LargestRank() > largest->LargestRank()) largest = &weight;
    }
    if (largest != nullptr && report_.rank > largest->LargestRank()) {
      throw Refused("rank " + std::to_string(report_.rank) + " exceeds " +
                        std::to_string(largest->LargestRank()) + ", the largest rank of " +
                        Quoted(largest->spec->name) + " and of every other tuned weight",
                    "target.rank");
    }
    if (largest != nullptr) return;
    throw Refused(both +
                      " have the same linear weights; an adapter cannot express changes of other "
                      "weights, such as " +
                      Quoted(std::find_if(weights_.begin(), weights_.end(), differs)->spec->name),
                  "source.base");
  }

  void Warn() {
    const std::string setting = FirstDifference(source_.config, base_.config);
    if (!setting.empty()) {
      report_.warnings.push_back("config.json of " + source_.source.name() + " has a different " +
                                 setting + " than the base; the adapter will run with the base's");
    }
    size_t count = 0;
    std::string names;
    for (const Weight& weight : weights_) {
      if (weight.is_linear || weight.norms.change2 == 0) continue;
      if (++count > kMostNamed) continue;
      names += (names.empty() ? "" : ", ") + weight.spec->name + " (" +
               NormText(std::sqrt(weight.norms.change2)) + " of " +
               NormText(std::sqrt(weight.norms.base2)) + ")";
    }
    if (count > 0) {
      report_.warnings.push_back(std::to_string(count) +
                                 " tuned weights cannot be part of an adapter and keep the base's "
                                 "values (norm of the lost change of the weight's norm): " +
                                 names + (count > kMostNamed ? ", …" : ""));
    }
    for (const std::string& warning : report_.warnings) context_.warn(warning);
  }

  void LayOut() {
    std::vector<NamedTensor> tensors;
    std::vector<int64_t*> offsets;
    for (Weight& weight : weights_) {
      if (!weight.HasModule()) continue;
      const auto [a, b] = engine::LoraTensorNames(weight.path());
      tensors.push_back({a, {nullptr, DType::kF32, {report_.rank, weight.spec->k}}});
      tensors.push_back({b, {nullptr, DType::kF32, {weight.spec->n, report_.rank}}});
      offsets.insert(offsets.end(), {&weight.a_offset, &weight.b_offset});
    }
    const engine::SafetensorsLayout layout = engine::LayOutSafetensors(tensors, {{"format", "pt"}});
    for (const auto& place : layout.places) *offsets[place.tensor] = place.offset;
    path_ = context_.target / kWeightsFile;
    file_ = engine::CreateNewFile(path_);
    engine::Reserve(file_, layout.file_bytes, path_);
    engine::WriteAllAt(file_, std::as_bytes(std::span(layout.header)), 0, path_);
  }

  void Take(Weight& weight, const WeightDifference& difference) {
    const bool out_in = weight.spec->layout == engine::SourceLayout::kOutIn;
    const int64_t rows = out_in ? weight.spec->n : weight.spec->k;
    const int64_t cols = out_in ? weight.spec->k : weight.spec->n;
    const LowRankFactors factors = Factorise(difference.Values(), rows, cols, report_.rank, scale_,
                                             context_.ops.pool(), [&] { context_.advance(0); });
    weight.error2 = factors.error2;
    // For a weight stored inputs first, D is (B A)ᵀ.
    weight.a_hash = Put(out_in ? factors.right : TransposedCopy(factors.left, rows, report_.rank),
                        weight.a_offset);
    weight.b_hash = Put(out_in ? factors.left : TransposedCopy(factors.right, report_.rank, cols),
                        weight.b_offset);
  }

  engine::Sha256Digest Put(const std::vector<float>& values, int64_t offset) {
    const Bytes bytes = std::as_bytes(std::span(values));
    engine::WriteAllAt(file_, bytes, offset, path_);
    return engine::Sha256Of(bytes);
  }

  void Finish() {
    engine::Sync(file_, path_);
    file_.Close(path_);
    engine::LoraConfig config;
    const std::filesystem::path& base = spec_.base;
    config.base_model = (base.has_filename() ? base : base.parent_path()).filename().string();
    config.rank = report_.rank;
    config.alpha = report_.alpha;
    for (const Weight& weight : weights_) {
      if (!weight.HasModule()) continue;
      config.target_modules.push_back(weight.path());
      // PEFT's flag for GPT-2's Conv1D layers.
      config.fan_in_fan_out =
          config.fan_in_fan_out || (weight.spec->layout != engine::SourceLayout::kOutIn &&
                                    weight.spec->name.ends_with(".weight"));
    }
    engine::WriteFileAtomically(context_.target / kConfigFile, engine::LoraConfigText(config));
    if (spec_.verify) Verify();
  }

  // Checks that the files, opened as for serving, hold the computed values.
  void Verify() const {
    const auto files = engine::LoraAdapter::Open(context_.target);
    engine::FindModules(files, *base_.family, base_.config, specs_);
    std::map<std::string, const engine::LoraModule*> modules;
    for (const engine::LoraModule& module : files.modules()) modules[module.path] = &module;
    for (const Weight& weight : weights_) {
      if (!weight.HasModule()) continue;
      const auto found = modules.find(weight.path());
      const auto has = [](const ConstTensorView& view, const engine::Sha256Digest& hash) {
        return engine::Sha256Of({view.data, view.bytes()}) == hash;
      };
      if (found != modules.end() && has(found->second->a, weight.a_hash) &&
          has(found->second->b, weight.b_hash)) {
        continue;
      }
      throw Error(ErrorCode::kDataLoss,
                  path_.string() + ": module " + Quoted(weight.path()) +
                      " differs from the written tensor; no target is written");
    }
  }

  PeftReport Report() {
    for (const Weight& weight : weights_) {
      if (weight.norms.change2 == 0) {
        ++report_.unchanged;
        continue;
      }
      report_.weights.push_back(
          {.name = weight.spec->name,
           .has_module = weight.is_linear,
           .change2 = weight.norms.change2,
           .base2 = weight.norms.base2,
           .error2 = weight.is_linear ? weight.error2 : weight.norms.change2});
    }
    return report_;
  }

  const ConvertSpec& spec_;
  const WriteContext& context_;
  // The trained f32 numbers, if the source only has rounded ones.
  const std::unique_ptr<ModelSource> masters_;
  const std::unique_ptr<ModelSource> base_files_;
  const TensorIndex source_;
  const TensorIndex base_;
  PeftReport report_;
  float scale_ = 1;
  std::vector<WeightSpec> specs_;
  std::vector<Weight> weights_;          // parallel to specs_
  std::map<int64_t, size_t> by_source_;  // index of the source's tensor -> index of the weight
  std::filesystem::path path_;
  engine::FileDescriptor file_;
};

}  // namespace

void WritePeft(const ConvertSpec& spec, const WriteContext& context) {
  context.report(Extraction(spec, context).Write().Json());
}

std::unique_ptr<ModelSource> OpenPeft(const ConvertSpec& /*spec*/,
                                      const std::filesystem::path& target) {
  return OpenTensors(target).source;
}

}  // namespace tandem::convert
