#include "convert/sources/tensor_source_open.h"

#include <algorithm>
#include <utility>

#include "convert/formats/maxtext/maxtext.h"
#include "convert/orbax/orbax_checkpoint.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterWeights = "adapter_model.safetensors";
constexpr size_t kMaxTextBytes = 512 << 20;

std::optional<std::string> TextIn(const fs::path& dir, std::string_view file_name) {
  const fs::path file = dir / file_name;
  if (!fs::is_regular_file(file)) return std::nullopt;
  return engine::ReadWholeFile(file, kMaxTextBytes);
}

// Reads one safetensors file.
class SafetensorsSource final : public ModelSource {
 public:
  explicit SafetensorsSource(const fs::path& file)
      : dir_(file.parent_path()), name_(file.string()), file_(engine::SafetensorsFile::Open(file)) {
    for (const std::string& name : file_.names()) {
      tensors_.push_back({name, *file_.Find(name)});
      tensors_.back().view.data = nullptr;
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
  }

  const std::string& name() const override { return name_; }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    return TextIn(dir_, file_name);
  }
  void ReadPart(int64_t part, const Take& take) const override {
    std::vector<std::byte> unused;
    take(tensors_.at(static_cast<size_t>(part)), Read(part, &unused));
  }
  Bytes Read(int64_t tensor, std::vector<std::byte>* /*buffer*/) const override {
    const engine::ConstTensorView& view =
        *file_.Find(tensors_.at(static_cast<size_t>(tensor)).name);
    return {view.data, view.bytes()};
  }

 private:
  fs::path dir_;
  std::string name_;
  engine::SafetensorsFile file_;
  std::vector<engine::NamedTensor> tensors_;
};

class OrbaxSource final : public ModelSource {
 public:
  explicit OrbaxSource(OrbaxCheckpoint checkpoint)
      : checkpoint_(std::move(checkpoint)), name_(checkpoint_.item_dir().string()) {
    std::vector<std::pair<engine::NamedTensor, size_t>> found;
    for (size_t i = 0; i < checkpoint_.leaves().size(); ++i) {
      const OrbaxCheckpoint::Leaf& leaf = checkpoint_.leaves()[i];
      if (!leaf.array || !leaf.array->dtype) continue;
      found.push_back({{leaf.name(), {nullptr, *leaf.array->dtype, leaf.array->shape}}, i});
    }
    // Leaves are sorted by path, tensors by the joined name.
    std::sort(found.begin(), found.end(),
              [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
    for (auto& [tensor, leaf] : found) {
      tensors_.push_back(std::move(tensor));
      leaves_.push_back(leaf);
    }
  }

  const std::string& name() const override { return name_; }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    return TextIn(checkpoint_.item_dir(), file_name);
  }
  void ReadPart(int64_t part, const Take& take) const override {
    std::vector<std::byte> buffer;
    take(tensors_.at(static_cast<size_t>(part)), Read(part, &buffer));
  }
  Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const override {
    const auto at = static_cast<size_t>(tensor);
    const OrbaxCheckpoint::Leaf& leaf = checkpoint_.leaves()[leaves_.at(at)];
    checkpoint_.CheckStored(leaf);
    buffer->resize(tensors_.at(at).view.bytes());
    checkpoint_.Read(leaf, *buffer);
    return *buffer;
  }

 private:
  OrbaxCheckpoint checkpoint_;
  std::string name_;
  std::vector<engine::NamedTensor> tensors_;
  std::vector<size_t> leaves_;  // tensor -> leaf
};

bool IsStepName(const std::string& name) {
  return name.size() == 12 && std::all_of(name.begin(), name.end(),
                                          [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Opens `orbax` as a model. `other`, a model, lends its config if nothing else does.
OpenedTensors AsModel(const OpenedTensors& orbax, const fs::path& base,
                      const OpenedTensors& other) {
  const auto open = [&](const fs::path& lender) {
    return OpenedTensors{
        TensorsKind::kModel, "maxtext", orbax.path,
        OpenMaxText(orbax.path, lender, std::nullopt, "", UnrecordedType::kOfParameter)};
  };
  if (!base.empty()) return open(base);
  OpenedTensors opened;
  const auto lacks_config = ExceptionIf<Error>(
      [](const Error& error) { return error.reason() == "missing_required_parameter"; },
      [&] { opened = open({}); });
  return lacks_config ? open(other.path) : std::move(opened);
}

}  // namespace

fs::path NewestStep(const fs::path& dir) {
  if (!fs::is_directory(dir)) return dir;
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (!IsStepName(entry.path().filename().string())) continue;
    if (!fs::is_regular_file(entry.path() / "manifest.json")) continue;
    if (newest.empty() || newest.filename() < entry.path().filename()) newest = entry.path();
  }
  return newest.empty() ? dir : newest;
}

OpenedTensors OpenTensors(const fs::path& given) {
  if (!fs::exists(given)) {
    throw Error(ErrorCode::kNotFound, given.string() + " does not exist")
        .WithReason("path_not_found");
  }
  const fs::path path = NewestStep(given);
  if (fs::is_regular_file(path) && path.extension() == ".safetensors") {
    return {TensorsKind::kSafetensors, "safetensors", path,
            std::make_unique<SafetensorsSource>(path)};
  }
  if (path == given && OrbaxCheckpoint::Is(path)) {
    auto checkpoint = OrbaxCheckpoint::Open(path);
    const char* format = checkpoint.is_ocdbt() ? "orbax, ocdbt" : "orbax";
    const fs::path item = checkpoint.item_dir();
    return {TensorsKind::kOrbax, format, item,
            std::make_unique<OrbaxSource>(std::move(checkpoint))};
  }
  if (fs::is_regular_file(path / kAdapterWeights)) {
    return {TensorsKind::kAdapter, "peft", path,
            std::make_unique<SafetensorsSource>(path / kAdapterWeights)};
  }
  auto source = OpenModelFiles(path, {});
  return {TensorsKind::kModel, engine::ModelDir::Open(path).format(), path, std::move(source)};
}

std::pair<OpenedTensors, OpenedTensors> OpenToCompare(const fs::path& first, const fs::path& second,
                                                      const fs::path& base) {
  std::pair<OpenedTensors, OpenedTensors> both{OpenTensors(first), OpenTensors(second)};
  const bool is_first = both.first.kind == TensorsKind::kOrbax;
  OpenedTensors& orbax = is_first ? both.first : both.second;
  const OpenedTensors& other = is_first ? both.second : both.first;
  if (orbax.kind == TensorsKind::kOrbax && other.kind == TensorsKind::kModel) {
    orbax = AsModel(orbax, base, other);
  } else if (!base.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "base applies only to the comparison of a MaxText checkpoint with a model; " +
                    first.string() + " and " + second.string() + " are other things")
        .WithParam("base")
        .WithReason("invalid_value");
  }
  return both;
}

}  // namespace tandem::convert
