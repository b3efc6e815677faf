#include "engine/formats/model_dir.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/checkpoint_manifest.h"
#include "engine/formats/gguf/gguf_model.h"
#include "engine/formats/llama2c/llama2c.h"
#include "engine/formats/not_a_model.h"
#include "engine/formats/quantized/quantized_tensors.h"
#include "engine/formats/stored/stacked_tensors.h"
#include "engine/io/atomic_write.h"
#include "engine/io/content_hash.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTextBytes = size_t{512} << 20;
constexpr size_t kMaxIndexBytes = size_t{64} << 20;
// Limit for the tensors of a native checkpoint, each layer of a stacked tensor counted.
constexpr size_t kMaxTensors = size_t{1} << 20;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// A name that cannot leave its directory when it is appended to a path.
bool IsPlainFileName(std::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
         });
}

// Returns the index's weight_map: tensor name -> shard name. The caller checks both against the
// shards.
std::map<std::string, std::string> ParseIndex(std::string_view text, const std::string& source) {
  if (text.size() > kMaxIndexBytes) {
    throw Error(ErrorCode::kDataLoss, source + ": the file has " + std::to_string(text.size()) +
                                          " bytes, more than the limit of " +
                                          std::to_string(kMaxIndexBytes));
  }
  const Json index = ParseUntrustedJson(text, source);
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (weight_map == index.end() || !weight_map->is_object()) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'weight_map' must be an object");
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": weight_map must map " + Quoted(tensor) + " to a plain file name" +
                      (shard.is_string() ? ", got " + Quoted(shard.get_ref<const std::string&>())
                                         : std::string()));
    }
    shard_of.emplace(tensor, shard.get<std::string>());
  }
  if (shard_of.empty()) {
    throw Error(ErrorCode::kDataLoss, source + ": field 'weight_map' lists no tensors");
  }
  return shard_of;
}

}  // namespace

ModelDir ModelDir::Open(const std::filesystem::path& path) {
  std::error_code error;
  ModelDir model;
  model.name_ = path.string();
  if (std::filesystem::is_regular_file(path, error)) {
    const std::shared_ptr<const MappedFile> file = MappedFile::Open(path);
    model.weight_files_.push_back({file, file->bytes()});
    model.TakeForeign(path);
    return model;
  }
  if (!std::filesystem::is_directory(path, error)) {
    throw Error(ErrorCode::kNotFound, WhyNotAModel(path));
  }
  model.dir_ = path;
  model.OpenWeights();
  return model;
}

ModelDir ModelDir::FromBytes(const std::string& name, std::span<const std::byte> bytes) {
  ModelDir model;
  model.name_ = name;
  model.weight_files_.push_back({nullptr, bytes});
  model.TakeForeign({});
  return model;
}

bool ModelDir::IsModelFile(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return false;
  const std::shared_ptr<const MappedFile> file = MappedFile::Open(path);
  return GgufFile::HasMagic(file->bytes()) || LooksLikeLlama2c(file->bytes());
}

ModelDir ModelDir::FromMemory(const std::string& name,
                              std::map<std::string, std::span<const std::byte>> files) {
  ModelDir model;
  model.name_ = name;
  model.memory_ = std::move(files);
  model.OpenWeights();
  return model;
}

bool ModelDir::Has(const std::string& file_name) const {
  if (dir_.empty()) return memory_.count(file_name) != 0;
  std::error_code absent;
  return std::filesystem::exists(dir_ / file_name, absent);
}

std::string ModelDir::Describe(std::string_view file_name) const {
  if (read_text_) return name_ + " (as " + std::string(file_name) + ")";
  return (std::filesystem::path(name_) / file_name).string();
}

SafetensorsFile ModelDir::OpenShard(const std::string& file_name) const {
  if (!dir_.empty()) return SafetensorsFile::Open(dir_ / file_name);
  return SafetensorsFile::FromBytes(memory_.at(file_name), Describe(file_name));
}

void ModelDir::Take(const SafetensorsFile& shard) {
  weight_files_.push_back({shard.file(), shard.bytes()});
}

void ModelDir::TakeForeign(const std::filesystem::path& path) {
  const std::span<const std::byte> bytes = weight_files_.front().bytes;
  SingleFileModel model;
  if (GgufFile::HasMagic(bytes)) {
    format_ = "gguf";
    model = ReadGgufModel(OpenGguf(path));
  } else if (LooksLikeLlama2c(bytes)) {
    format_ = "llama2.c";
    const std::filesystem::path vocabulary =
        path.empty() ? path : FindLlama2cVocabulary(path, bytes);
    model =
        ReadLlama2cModel(bytes, name_, vocabulary.empty() ? nullptr : MappedFile::Open(vocabulary));
  } else {
    throw Error(ErrorCode::kUnsupported, path.empty()
                                             ? name_ + ": the bytes are neither GGUF nor llama2.c"
                                             : WhyNotAModel(path));
  }
  tensors_ = std::move(model.tensors);
  read_text_ = std::move(model.read_text);
}

GgufFile ModelDir::OpenGguf(const std::filesystem::path& path) {
  GgufFile gguf = GgufFile::FromBytes(weight_files_.front().bytes, name_);
  for (const std::filesystem::path& part : gguf.FindOtherParts(path)) {
    const std::shared_ptr<const MappedFile> file = MappedFile::Open(part);
    weight_files_.push_back({file, file->bytes()});
    gguf.AddPart(GgufFile::FromBytes(file->bytes(), part.string()));
  }
  gguf.CheckParts();
  return gguf;
}

void ModelDir::OpenWeights() {
  if (!Has("config.json")) {
    throw Error(ErrorCode::kNotFound, Describe("config.json") + ": no such file" +
                                          (dir_.empty() ? "" : "; " + WhyNotAModel(dir_)));
  }
  if (Has(kSingleFile)) {
    const SafetensorsFile file = OpenShard(kSingleFile);
    Take(file);
    for (const std::string& name : file.names()) tensors_[name].view = *file.Find(name);
    return Join();
  }
  if (!Has(kIndexFile) && HasManifest()) return OpenCheckpoint();
  if (!Has(kIndexFile)) {
    throw Error(ErrorCode::kNotFound,
                dir_.empty() ? name_ + ": neither " + kSingleFile + " nor " + kIndexFile + " exists"
                             : WhyNotAModel(dir_));
  }

  const std::string source = Describe(kIndexFile);
  const auto weight_map = ParseIndex(*ReadText(kIndexFile), source);
  // In name order, so that the content hash does not depend on the index's order.
  std::map<std::string, std::optional<SafetensorsFile>> shards;
  for (const auto& [tensor, shard] : weight_map) shards.try_emplace(shard);
  for (auto& [shard, file] : shards) {
    if (!Has(shard)) {
      throw Error(ErrorCode::kNotFound, source + ": shard " + Quoted(shard) + " is missing");
    }
    file = OpenShard(shard);
    Take(*file);
  }
  for (const auto& [tensor, shard] : weight_map) {
    const ConstTensorView* view = shards.at(shard)->Find(tensor);
    if (view == nullptr) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": tensor " + Quoted(tensor) + " is not in shard " + Quoted(shard));
    }
    tensors_[tensor].view = *view;
  }
  Join();
}

// Other checkpoints open without a readable config.json.
void ModelDir::Join() {
  const std::string text = *ReadText("config.json"), source = Describe("config.json");
  if (!MayBeQuantized(text)) return;
  JoinQuantized(ParseUntrustedJson(text, source), source, name_, &tensors_);
}

bool ModelDir::HasManifest() const {
  return Has(kManifestFile) && IsCheckpointManifest(*ReadText(kManifestFile));
}

void ModelDir::OpenCheckpoint() {
  const std::string source = Describe(kManifestFile);
  const CheckpointManifest manifest = ParseCheckpointManifest(*ReadText(kManifestFile), source);
  format_ = "native";
  if (!dir_.empty()) CheckManifestFiles(manifest, dir_, /*hashes=*/false);
  const auto add = [&](const std::string& name, ConstTensorView view) {
    if (!tensors_.try_emplace(name, StoredTensor{.view = std::move(view)}).second) {
      throw Error(ErrorCode::kDataLoss, name_ + ": tensor " + Quoted(name) + " occurs twice");
    }
    if (tensors_.size() > kMaxTensors) {
      throw Error(ErrorCode::kDataLoss,
                  name_ + ": more than " + std::to_string(kMaxTensors) + " tensors");
    }
  };
  for (const std::string& shard : manifest.TensorFiles("model")) {
    if (!Has(shard)) {
      throw Error(ErrorCode::kNotFound, source + ": shard " + Quoted(shard) + " is missing");
    }
    const SafetensorsFile file = OpenShard(shard);
    Take(file);
    for (const std::string& name : file.names()) {
      const ConstTensorView& view = *file.Find(name);
      if (manifest.layout == "stacked" && IsStackedName(name)) {
        ForEachLayer(name, view, Describe(shard), add);
      } else {
        add(name, view);
      }
    }
  }
  if (tensors_.empty())
    throw Error(ErrorCode::kDataLoss, source + ": the manifest lists no weight files");
}

std::optional<std::string> ModelDir::ReadText(std::string_view file_name) const {
  if (!IsPlainFileName(file_name) && file_name != kPoolingFile) {
    throw Error(ErrorCode::kInvalidArgument, Quoted(file_name) + " is not a plain file name");
  }
  if (read_text_) return read_text_(file_name);
  const std::string name(file_name);
  if (!Has(name)) return std::nullopt;
  if (!dir_.empty()) return ReadWholeFile(dir_ / name, kMaxTextBytes);
  const auto bytes = memory_.at(name);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::vector<std::string> ModelDir::tensor_names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

const StoredTensor* ModelDir::FindStored(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const ConstTensorView* ModelDir::FindTensor(std::string_view name) const {
  const StoredTensor* stored = FindStored(name);
  return stored != nullptr && stored->IsAsAsked() ? &stored->view : nullptr;
}

void ModelDir::LetGo(const StoredTensor& tensor) const { LetGo(tensor.bytes()); }

void ModelDir::LetGo(std::span<const std::byte> bytes) const {
  for (const WeightFile& file : weight_files_) {
    if (file.file != nullptr) file.file->LetGo(bytes);
  }
}

void ModelDir::CheckUnchanged() const {
  for (const WeightFile& file : weight_files_) {
    if (file.file != nullptr) file.file->CheckUnchanged();
  }
}

std::string ModelDir::ContentHash(const std::filesystem::path& memo_dir,
                                  const std::function<void()>& between_pieces,
                                  const FileHashes& known) const {
  return ContentHashOf(weight_files_, memo_dir, between_pieces, known);
}

std::string ModelDir::TensorHash(const std::filesystem::path& memo_dir,
                                 const std::function<void()>& between_pieces) const {
  if (format_ != "gguf") return ContentHash(memo_dir, between_pieces);
  // `parts` holds the byte range of each file that its tensors span. `places` describes each tensor
  // and its offset in that range.
  std::vector<WeightFile> parts;
  std::string places;
  using Named = decltype(tensors_)::value_type;
  std::vector<std::pair<std::span<const std::byte>, const Named*>> ranges;
  for (const Named& named : tensors_) {
    if (named.second.encoded_bytes.empty()) ranges.push_back({named.second.bytes(), &named});
    for (const auto& bytes : named.second.encoded_bytes) ranges.push_back({bytes, &named});
  }
  for (const WeightFile& file : weight_files_) {
    const std::byte* const file_end = file.bytes.data() + file.bytes.size();
    const std::byte* begin = file_end;
    const std::byte* end = file.bytes.data();
    const auto lies_here = [&](std::span<const std::byte> bytes) {
      return !std::less<>()(bytes.data(), file.bytes.data()) &&
             std::less<>()(bytes.data(), file_end);
    };
    for (const auto& [bytes, stored] : ranges) {
      if (!lies_here(bytes)) continue;
      begin = std::min(begin, bytes.data());
      end = std::max(end, bytes.data() + bytes.size());
    }
    if (begin >= end) continue;
    for (const auto& [bytes, stored] : ranges) {
      if (!lies_here(bytes)) continue;
      const auto& [name, tensor] = *stored;
      places += std::to_string(name.size()) + " " + name + " " + std::to_string(parts.size()) +
                " " + std::to_string(bytes.data() - begin) + " " + std::to_string(bytes.size()) +
                " " + std::string(DTypeName(tensor.view.dtype));
      if (!tensor.IsAsAsked()) places += " " + DecodingOf(tensor);
      for (const int64_t extent : tensor.view.shape) places += " " + std::to_string(extent);
      places += "\n";
    }
    parts.push_back({file.file, {begin, end}});
  }
  const std::string bytes_hash =
      ContentHashOf(parts, memo_dir, between_pieces, {}, "tensors of a GGUF");
  const std::string identity = bytes_hash + "\n" + places;
  return ToHex(Sha256Of(std::as_bytes(std::span(identity))));
}

}  // namespace tandem::engine
