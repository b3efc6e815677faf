#include "engine/model/weightless_model.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/io/json.h"
#include "engine/model/families/family.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMostFileBytes = uint64_t{1} << 44;  // far above any model
constexpr std::string_view kWeightsFile = "model.safetensors";

bool IsWeightFile(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".gguf");
}

struct StoredType {
  const char* code;  // in safetensors headers
  int64_t bytes;
};

// By `dtype`, as transformers 5 writes it, or `torch_dtype`.
StoredType TypeOf(const Json& config, const std::string& source) {
  const std::string named = JsonStringOr(
      config, "dtype", JsonStringOr(config, "torch_dtype", "bfloat16", source), source);
  if (named == "float32") return {"F32", 4};
  if (named == "float16") return {"F16", 2};
  return {"BF16", 2};
}

// The header of a safetensors file, and the bytes of its data.
std::pair<std::string, uint64_t> HeaderOf(const std::vector<WeightSpec>& specs, StoredType type) {
  nlohmann::json header = nlohmann::json::object();  // sorted: an expert model has 20,000 names
  int64_t end = 0;
  for (const WeightSpec& spec : specs) {
    int64_t elements = 1;
    for (const int64_t n : spec.source_shape) elements = CheckedMul(elements, n, "a tensor's size");
    const int64_t begin = end;
    end = CheckedAdd(end, CheckedMul(elements, type.bytes, "a tensor's size"), "the weights' size");
    header[spec.name] = {
        {"dtype", type.code}, {"shape", spec.source_shape}, {"data_offsets", {begin, end}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::string bytes(sizeof(length), '\0');
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(bytes.data(), &length, sizeof(length));
  return {bytes + text, static_cast<uint64_t>(end)};
}

}  // namespace

// Zeros behind a beginning.
class WeightlessModel::Zeros {
 public:
  explicit Zeros(const File& file) : size_(static_cast<size_t>(file.bytes)) {
    if (file.bytes > kMostFileBytes || file.bytes < file.head.size()) {
      throw Error(ErrorCode::kDataLoss, file.name + ": a size of " + std::to_string(file.bytes) +
                                            " bytes cannot be right");
    }
    if (size_ == 0) return;
    // Private and only readable, so that no memory is committed for it.
    void* mapped =
        mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) Fail(file);
    data_ = static_cast<std::byte*>(mapped);
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t written = std::min(size_, (file.head.size() + page - 1) / page * page);
    if (mprotect(data_, written, PROT_READ | PROT_WRITE) != 0) {
      munmap(data_, size_);
      Fail(file);
    }
    std::memcpy(data_, file.head.data(), file.head.size());
  }
  ~Zeros() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  [[noreturn]] static void Fail(const File& file) {
    throw Error(ErrorCode::kResourceExhausted,
                file.name + ": no address space of " + std::to_string(file.bytes) +
                    " bytes: " + std::strerror(errno) + "; raise the limit (ulimit -v)");
  }

  size_t size_;
  std::byte* data_ = nullptr;
};

WeightlessModel::WeightlessModel() = default;
WeightlessModel::~WeightlessModel() = default;
WeightlessModel::WeightlessModel(WeightlessModel&&) noexcept = default;
WeightlessModel& WeightlessModel::operator=(WeightlessModel&&) noexcept = default;

WeightlessModel WeightlessModel::FromFiles(const std::string& name,
                                           const std::vector<File>& files) {
  WeightlessModel model;
  std::map<std::string, std::span<const std::byte>> named;
  for (const File& file : files) {
    model.files_.push_back(std::make_unique<Zeros>(file));
    named[file.name] = model.files_.back()->bytes();
    if (IsWeightFile(file.name)) model.weight_file_bytes_ += file.bytes;
  }
  const bool is_gguf = files.size() == 1 && files.front().name.ends_with(".gguf");
  model.dir_ = std::make_unique<const ModelDir>(
      is_gguf ? ModelDir::FromBytes(name, model.files_.front()->bytes())
              : ModelDir::FromMemory(name, std::move(named)));
  return model;
}

WeightlessModel WeightlessModel::FromConfig(const std::string& name,
                                            const std::string& config_text) {
  const std::string source = name + "/config.json";
  Json config = ParseUntrustedJson(config_text, source);
  const FamilySpec& family = FindFamily(config, source);
  const bool is_quantised =
      config.contains("quantization_config") && !config["quantization_config"].is_null();
  config.erase("quantization_config");
  const auto [header, data_bytes] =
      HeaderOf(family.list_weights(family.parse_config(config, source)), TypeOf(config, source));
  const std::string text = config.dump();
  WeightlessModel model =
      FromFiles(name, {{"config.json", text, text.size()},
                       {std::string(kWeightsFile), header, header.size() + data_bytes}});
  model.is_quantised_ = is_quantised;
  return model;
}

}  // namespace tandem::engine
