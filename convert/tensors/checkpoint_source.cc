#include "convert/tensors/checkpoint_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "convert/tensors/source_config.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/checkpoint_manifest.h"
#include "engine/formats/stored/stacked_tensors.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"
#include "engine/model/families/weights.h"
#include "engine/tensor/split_master.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using engine::CheckpointManifest;
using engine::DType;

constexpr size_t kMaxManifestBytes = size_t{64} << 20;
constexpr size_t kMaxStateBytes = size_t{512} << 20;
constexpr size_t kMaxTensors = size_t{1} << 20;
constexpr int64_t kCastElements = 1 << 20;  // converted through f32 at a time
constexpr const char* kLow = "low/";        // prefix of a bf16 run's lower master halves

// Tensors of optim*.safetensors, and the text files of their directory.
class StateFiles final : public ModelSource {
 public:
  StateFiles(const fs::path& dir, const CheckpointManifest& manifest)
      : dir_(dir), name_(dir.string()) {
    std::map<std::string, engine::ConstTensorView> views;
    const auto add = [&](const std::string& name, engine::ConstTensorView view) {
      if (!views.emplace(name, std::move(view)).second || views.size() > kMaxTensors) {
        throw Error(ErrorCode::kDataLoss, name_ + ": tensor " + Quoted(name) +
                                              " occurs twice, or the checkpoint has more than " +
                                              std::to_string(kMaxTensors) + " tensors");
      }
    };
    for (const std::string& file : manifest.TensorFiles("optim")) {
      files_.push_back(engine::SafetensorsFile::Open(dir / file));
      for (const std::string& name : files_.back().names()) {
        const engine::ConstTensorView& view = *files_.back().Find(name);
        if (manifest.layout == "stacked" && engine::IsStackedName(name)) {
          engine::ForEachLayer(name, view, (dir / file).string(), add);
        } else {
          add(name, view);
        }
      }
    }
    for (auto& [name, view] : views) {
      data_.push_back({view.data, view.bytes()});
      view.data = nullptr;
      tensors_.push_back({name, std::move(view)});
    }
  }

  const std::string& name() const override { return name_; }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    const fs::path path = dir_ / file_name;
    if (!fs::exists(path)) return std::nullopt;
    return engine::ReadWholeFile(path, kMaxStateBytes);
  }
  void ReadPart(int64_t part, const Take& take) const override {
    take(tensors_.at(static_cast<size_t>(part)), BytesOf(part));
    LetGo(part);
  }
  Bytes Read(int64_t tensor, std::vector<std::byte>* /*buffer*/) const override {
    return BytesOf(tensor);
  }
  void LetGo(int64_t tensor) const override { LetGoOf(BytesOf(tensor)); }
  void LetGoOf(Bytes bytes) const override {
    for (const engine::SafetensorsFile& file : files_) file.file()->LetGo(bytes);
  }
  int64_t PartMemory(int64_t /*part*/) const override { return 0; }

 private:
  Bytes BytesOf(int64_t tensor) const { return data_.at(static_cast<size_t>(tensor)); }

  const fs::path dir_;
  const std::string name_;
  std::vector<engine::SafetensorsFile> files_;
  std::vector<engine::NamedTensor> tensors_;
  std::vector<Bytes> data_;
};

std::map<std::string, engine::WeightSpec> SpecsOf(const ModelSource& source) {
  const SourceConfig config = ConfigOf(source);
  std::map<std::string, engine::WeightSpec> specs;
  for (engine::WeightSpec& spec : config.family->list_weights(config.config)) {
    specs.emplace(spec.name, std::move(spec));
  }
  return specs;
}

class Checkpoint final : public ModelSource {
 public:
  Checkpoint(const fs::path& path, const CheckpointManifest& manifest, std::optional<DType> dtype)
      : halves_(OpenModelFiles(path, std::nullopt)), weights_(OpenModelFiles(path, dtype)) {
    if (manifest.kind != "full") return;
    state_ = std::make_unique<StateFiles>(path, manifest);
    if (dtype) FindMasters();
  }

  const std::string& name() const override { return weights_->name(); }
  const std::vector<engine::NamedTensor>& tensors() const override { return weights_->tensors(); }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    return weights_->ReadText(file_name);
  }
  void ReadPart(int64_t part, const Take& take) const override {
    std::vector<std::byte> buffer;
    take(tensors()[static_cast<size_t>(part)], Read(part, &buffer));
    LetGo(part);
  }
  Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const override {
    const auto master = masters_.find(tensor);
    if (master == masters_.end()) return weights_->Read(tensor, buffer);
    return ReadMaster(tensor, master->second, buffer);
  }
  void LetGo(int64_t tensor) const override {
    weights_->LetGo(tensor);
    halves_->LetGo(tensor);
    const auto master = masters_.find(tensor);
    if (master != masters_.end()) state_->LetGo(master->second.low);
  }
  void LetGoOf(Bytes bytes) const override { weights_->LetGoOf(bytes); }
  int64_t PartMemory(int64_t part) const override {
    return masters_.count(part) != 0 ? ModelSource::PartMemory(part) : weights_->PartMemory(part);
  }
  const ModelSource* state() const override { return state_.get(); }

 private:
  struct Master {
    int64_t low;  // index in the state
    engine::SourceLayout layout;
    int64_t n, k;
  };

  // Finds the weights whose masters are stored in two halves.
  void FindMasters() {
    std::map<std::string, engine::WeightSpec> specs;
    for (size_t i = 0; i < tensors().size(); ++i) {
      const engine::NamedTensor& half = halves_->tensors()[i];
      const int64_t low = state_->Find(kLow + half.name);
      if (low < 0) continue;
      if (specs.empty()) specs = SpecsOf(*weights_);
      const auto spec = specs.find(half.name);
      const engine::ConstTensorView& view = state_->tensors()[static_cast<size_t>(low)].view;
      const bool fits = spec != specs.end() && half.view.dtype == DType::kBF16 &&
                        view.dtype == DType::kI16 &&
                        view.shape == std::vector{spec->second.n, spec->second.k} &&
                        half.view.elements() == view.elements();
      if (!fits) {
        throw Error(
            ErrorCode::kDataLoss,
            name() + ": tensor " + Quoted(kLow + half.name) +
                " must be the i16 lower half of the bf16 weight of that name, with its shape");
      }
      masters_.emplace(static_cast<int64_t>(i),
                       Master{low, spec->second.layout, spec->second.n, spec->second.k});
    }
  }

  Bytes ReadMaster(int64_t tensor, const Master& master, std::vector<std::byte>* buffer) const {
    const engine::NamedTensor& wanted = tensors()[static_cast<size_t>(tensor)];
    const Bytes high = halves_->Read(tensor, nullptr);
    const Bytes low = state_->Read(master.low, nullptr);
    const auto value = [&](int64_t i) {
      // Optimizer tensors are [n, k] in any weight layout.
      const int64_t at = master.layout == engine::SourceLayout::kOutIn
                             ? i
                             : i % master.n * master.k + i / master.n;
      engine::Bf16 upper = 0;
      int16_t lower = 0;
      std::memcpy(&upper, high.data() + static_cast<size_t>(i) * 2, 2);
      std::memcpy(&lower, low.data() + static_cast<size_t>(at) * 2, 2);
      return engine::JoinSplitMaster(upper, lower);
    };
    buffer->clear();
    buffer->reserve(wanted.view.bytes());
    std::vector<float> values;
    for (int64_t begin = 0; begin < wanted.view.elements(); begin += kCastElements) {
      const int64_t count = std::min(kCastElements, wanted.view.elements() - begin);
      values.resize(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value(begin + i);
      AppendRounded(name(), wanted, values, buffer);
    }
    return *buffer;
  }

  std::unique_ptr<ModelSource> halves_;   // as stored
  std::unique_ptr<ModelSource> weights_;  // as asked, except masters
  std::unique_ptr<StateFiles> state_;
  std::map<int64_t, Master> masters_;  // by tensor
};

}  // namespace

std::unique_ptr<ModelSource> OpenCheckpoint(const ConvertSpec& spec, const fs::path& path,
                                            std::optional<DType> dtype) {
  const fs::path file = path / engine::kManifestFile;
  const CheckpointManifest manifest = engine::ParseCheckpointManifest(
      engine::ReadWholeFile(file, kMaxManifestBytes), file.string());
  if (manifest.kind == "adapter") {
    throw Error(ErrorCode::kUnsupported,
                file.string() +
                    ": adapter_config.json is missing, which the conversion of an adapter needs");
  }
  engine::CheckManifestFiles(manifest, path, spec.verify);
  return std::make_unique<Checkpoint>(path, manifest, dtype);
}

bool IsCheckpoint(const fs::path& path) {
  const fs::path file = path / engine::kManifestFile;
  std::error_code absent;
  return fs::is_regular_file(file, absent) && fs::file_size(file, absent) <= kMaxManifestBytes &&
         engine::IsCheckpointManifest(engine::ReadWholeFile(file, kMaxManifestBytes));
}

}  // namespace tandem::convert
