#include "convert/tensors/model_source.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/quantized/quantized_tensors.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/find_weight.h"
#include "engine/tensor/round.h"

namespace tandem::convert {
namespace {

using engine::DType;
using engine::StoredTensor;

// Elements converted through f32 at a time.
constexpr int64_t kReadPieceElements = 1 << 20;

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 ||
         dtype == DType::kF64;
}

// The tensors of a source are decoded, so its config.json must not describe integers.
void DropQuantization(std::string* text) {
  if (!engine::MayBeQuantized(*text)) return;
  auto json = engine::ParseUntrustedJson(*text, "config.json");
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (json.is_object()) json.erase(key);
    if (json.contains("text_config") && json["text_config"].is_object()) {
      json["text_config"].erase(key);
    }
  }
  *text = json.dump(2) + "\n";
}

class ModelFiles final : public ModelSource {
 public:
  ModelFiles(const std::filesystem::path& path, std::optional<DType> dtype)
      : model_(engine::ModelDir::Open(path)) {
    std::map<std::string, StoredTensor> tensors;
    for (const std::string& name : model_.tensor_names()) tensors[name] = *model_.FindStored(name);
    TakeApart(&tensors);
    for (auto& [name, stored] : tensors) {
      engine::ConstTensorView view = stored.view;
      view.data = nullptr;
      if (dtype && IsFloat(view.dtype)) view.dtype = *dtype;
      tensors_.push_back({name, std::move(view)});
      stored_.push_back(std::move(stored));
    }
  }

  const std::string& name() const override { return model_.name(); }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    std::optional<std::string> text = model_.ReadText(file_name);
    if (text && file_name == "config.json") DropQuantization(&*text);
    return text;
  }
  void ReadPart(int64_t part, const Take& take) const override {
    std::vector<std::byte> buffer;
    take(Tensor(part), Read(part, &buffer));
    LetGo(part);
  }
  Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const override {
    const engine::NamedTensor& wanted = Tensor(tensor);
    const StoredTensor& stored = Stored(tensor);
    if (IsMapped(tensor)) return stored.bytes();
    buffer->clear();
    buffer->reserve(wanted.view.bytes());
    // Otherwise 2^60 claimed rows without elements would be walked piece by piece.
    if (wanted.view.elements() == 0) return *buffer;
    if (stored.transposed) {
      AppendRounded(name(), wanted, engine::DecodeTensor(stored), buffer);
      return *buffer;
    }
    const int64_t rows_at_once =
        std::max<int64_t>(1, kReadPieceElements / std::max<int64_t>(1, stored.row_elements()));
    for (int64_t row = 0; row < stored.rows(); row += rows_at_once) {
      AppendRows(tensor, row, std::min(rows_at_once, stored.rows() - row), buffer);
    }
    return *buffer;
  }
  std::optional<Bytes> ReadRows(int64_t tensor, int64_t first, int64_t count,
                                std::vector<std::byte>* buffer) const override {
    const engine::NamedTensor& wanted = Tensor(tensor);
    const StoredTensor& stored = Stored(tensor);
    if (wanted.view.shape.empty() || stored.rows() != wanted.view.shape.front())
      return std::nullopt;
    if (stored.transposed) return std::nullopt;
    if (IsMapped(tensor)) return RowBytes(stored, first, count);
    buffer->clear();
    AppendRows(tensor, first, count, buffer);
    return *buffer;
  }
  void LetGo(int64_t tensor) const override { model_.LetGo(Stored(tensor)); }
  void LetGoOf(Bytes bytes) const override { model_.LetGo(bytes); }
  int64_t stored_bytes() const override {
    int64_t sum = 0;
    for (const StoredTensor& stored : stored_) {
      sum += static_cast<int64_t>(stored.bytes().size());
    }
    return sum;
  }
  int64_t PartMemory(int64_t part) const override {
    return IsMapped(part) ? 0 : ModelSource::PartMemory(part);
  }

 private:
  static Bytes RowBytes(const StoredTensor& stored, int64_t first, int64_t count) {
    const int64_t row_bytes =
        static_cast<int64_t>(stored.bytes().size()) / std::max<int64_t>(1, stored.rows());
    return stored.bytes().subspan(static_cast<size_t>(first * row_bytes),
                                  static_cast<size_t>(count * row_bytes));
  }
  // Appends rows in file order, in the wanted dtype.
  void AppendRows(int64_t tensor, int64_t first, int64_t count,
                  std::vector<std::byte>* bytes) const {
    const StoredTensor& stored = Stored(tensor);
    std::vector<float> values(static_cast<size_t>(count * stored.row_elements()));
    engine::ReadRows(stored, first, count, values.data());
    if (engine::HasScaleOfNoNumber(stored, values)) {
      throw Error(ErrorCode::kDataLoss, name() + ": tensor " + Quoted(Tensor(tensor).name) +
                                            std::string(engine::kScaleOfNoNumber));
    }
    AppendRounded(name(), Tensor(tensor), values, bytes);
    // Keeps the file's pages from staying in memory beside the converted rows.
    if (stored.row_stride == 0) model_.LetGo(RowBytes(stored, first, count));
  }
  // Whether the stored bytes are the wanted bytes.
  bool IsMapped(int64_t tensor) const {
    const engine::NamedTensor& wanted = Tensor(tensor);
    const StoredTensor& stored = Stored(tensor);
    return stored.IsAsAsked() && stored.view.dtype == wanted.view.dtype;
  }
  const engine::NamedTensor& Tensor(int64_t index) const {
    return tensors_.at(static_cast<size_t>(index));
  }
  const StoredTensor& Stored(int64_t index) const { return stored_.at(static_cast<size_t>(index)); }
  // Replaces the tensors that hold several weights of the family by these weights. A model whose
  // config.json no family reads keeps its tensors.
  void TakeApart(std::map<std::string, StoredTensor>* tensors) const {
    std::vector<engine::WeightSpec> specs;
    const auto unread = ErrorOf([&] {
      const auto json =
          engine::ParseUntrustedJson(model_.ReadText("config.json").value_or("{}"), model_.name());
      const engine::FamilySpec& family = engine::FindFamily(json, model_.name());
      specs = family.list_weights(engine::ParseModelConfig(family, json, model_.name()));
    });
    if (unread) return;
    for (const auto& [name, stacked] : engine::StackedTensorsOf(specs, /*published=*/false)) {
      const auto whole = tensors->find(name);
      if (whole == tensors->end()) continue;
      if (whole->second.view.shape != stacked.shape) {
        throw Error(ErrorCode::kDataLoss,
                    model_.name() + ": tensor " + Quoted(name) + " has shape " +
                        engine::ShapeText(whole->second.view.shape) +
                        ", but config.json requires " + engine::ShapeText(stacked.shape));
      }
      for (const engine::StackedTensor::Member& member : stacked.members) {
        const engine::WeightSpec& spec = specs[member.spec];
        tensors->try_emplace(spec.name,
                             engine::PartOf(whole->second, member.part, spec, model_.name()));
      }
      tensors->erase(name);
    }
  }

  engine::ModelDir model_;
  std::vector<engine::NamedTensor> tensors_;
  std::vector<StoredTensor> stored_;  // of each tensor
};

}  // namespace

int64_t ModelSource::Find(std::string_view tensor) const {
  const auto found = std::lower_bound(
      tensors().begin(), tensors().end(), tensor,
      [](const engine::NamedTensor& one, std::string_view name) { return one.name < name; });
  if (found == tensors().end() || found->name != tensor) return -1;
  return found - tensors().begin();
}

void ModelSource::ReadPieces(int64_t part, const ParallelFor& /*parallel_for*/,
                             const TakePiece& take) const {
  ReadPart(part, [&](const engine::NamedTensor& tensor, Bytes bytes) { take(tensor, 0, bytes); });
}

int64_t ModelSource::PartMemory(int64_t part) const {
  int64_t bytes = 0;
  for (const int64_t tensor : TensorsOf(part)) {
    bytes += static_cast<int64_t>(tensors()[static_cast<size_t>(tensor)].view.bytes());
  }
  return bytes;
}

int64_t ModelSource::bytes() const {
  int64_t bytes = 0;
  for (const engine::NamedTensor& tensor : tensors()) {
    bytes += static_cast<int64_t>(tensor.view.bytes());
  }
  return bytes;
}

std::unique_ptr<ModelSource> OpenModelFiles(const std::filesystem::path& path,
                                            std::optional<DType> dtype) {
  return std::make_unique<ModelFiles>(path, dtype);
}

void AppendRounded(const std::string& source, const engine::NamedTensor& tensor,
                   std::span<const float> values, std::vector<std::byte>* bytes) {
  if (!engine::FitsIn(values, tensor.view.dtype)) {
    throw Error(ErrorCode::kDataLoss,
                source + ": tensor " + Quoted(tensor.name) + " has values outside the range of " +
                    std::string(DTypeName(tensor.view.dtype)) + "; choose another dtype");
  }
  std::vector<std::byte> rounded;
  engine::RoundTo(tensor.view.dtype, values, &rounded);
  bytes->insert(bytes->end(), rounded.begin(), rounded.end());
}

std::optional<DType> FloatTypeOf(std::string_view name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  if (name == "f16") return DType::kF16;
  return std::nullopt;
}

}  // namespace tandem::convert
