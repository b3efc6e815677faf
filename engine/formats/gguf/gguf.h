#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::engine {

// The GGUF container, versions 2 and 3, little endian. The file has "GGUF", u32 version, u64 number
// of tensors, u64 number of keys, the keys with their values, and the tensor descriptions. The data
// begin at the next multiple of `general.alignment`. Reading checks the structure before it returns
// the first value. Counts allocate nothing: every stored item has been read. Throws kDataLoss with
// one line naming the file and the key or tensor. Throws kUnsupported for versions, byte orders and
// tensor types that are not read. Immutable; any thread.
//
// gguf_model.h interprets keys and names.
class GgufFile {
 public:
  // Far above known files. They keep the cost of a hostile file proportional to its size.
  static constexpr uint64_t kMaxKeys = 1 << 16;
  static constexpr uint64_t kMaxTensors = 100'000;
  static constexpr uint64_t kMaxArrayItems = 1 << 20;
  static constexpr int kMaxArrayDepth = 4;
  // Limit of names of keys and tensors, and of each string in an array. Strings are checked only
  // when a caller asks for them, because files carry whole tokenizers of other programs.
  static constexpr uint64_t kMaxNameBytes = 1 << 16;
  static constexpr uint64_t kMaxStringBytes = 1 << 20;  // chat templates are the longest

  // Type of a value, by its number in the format.
  enum class Type : uint32_t {
    kU8,
    kI8,
    kU16,
    kI16,
    kU32,
    kI32,
    kF32,
    kBool,
    kString,
    kArray,
    kU64,
    kI64,
    kF64
  };
  struct Tensor {
    std::string_view name;
    std::vector<int64_t> shape;  // outermost axis first
    Encoding encoding = Encoding::kPlain;
    DType dtype = DType::kF32;  // of the elements; f32 with blocks
    std::span<const std::byte> data;
  };

  static bool HasMagic(std::span<const std::byte> bytes);
  // The bytes must outlive the GgufFile. `name` is for messages.
  static GgufFile FromBytes(std::span<const std::byte> bytes, const std::string& name);

  // Paths of the other parts of a split model; empty for a whole file. The parts are named
  // X-00001-of-00003.gguf and so on. Each of the `split.count` files has its `split.no` and some of
  // the tensors. The first part has the model's keys. `path` is the first part; the others must be
  // in its directory. Throws kNotFound naming a missing part, and kUnsupported when `path` is empty
  // (bytes) or is not the first part.
  std::vector<std::filesystem::path> FindOtherParts(const std::filesystem::path& path) const;
  // Adds the tensors of the next part, whose bytes must outlive this GgufFile. Throws kDataLoss
  // when the part does not belong here.
  void AddPart(const GgufFile& part);
  // Call after the last part. Throws kDataLoss when tensors are missing (`split.tensors.count`).
  void CheckParts() const;

  const std::string& name() const { return name_; }
  bool Has(std::string_view key) const { return values_.contains(key); }
  bool IsArray(std::string_view key) const;
  // The value of a key, or nullopt when the key is absent. Throws kDataLoss when the value has
  // another type. Integers of any width are accepted if they fit. Strings are valid UTF-8 within
  // the limits.
  std::optional<int64_t> Int(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string_view> String(std::string_view key) const;
  std::optional<std::vector<std::string_view>> Strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> Ints(std::string_view key) const;  // booleans too
  std::optional<std::vector<float>> Floats(std::string_view key) const;
  std::optional<std::string_view> Bytes(std::string_view key) const;  // an array of 8-bit integers

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of the files
  const Tensor* Find(std::string_view name) const;                 // null when absent

  // For callers that find a key's value invalid (kDataLoss) or unsupported (kUnsupported).
  [[noreturn]] void Broken(std::string_view key, const std::string& what) const;
  [[noreturn]] void Unsupported(std::string_view key, const std::string& what) const;

 private:
  struct Value {
    Type type;
    Type item = Type::kU8;  // of an array's items
    uint64_t count = 1;
    std::span<const std::byte> bytes;  // a string's text, an array's items, or the value
  };
  class Reader;

  const Value* Get(std::string_view key) const;
  void CheckText(std::string_view key, const std::string& which, std::string_view text,
                 uint64_t most) const;
  const Value* GetArray(std::string_view key) const;

  std::string name_;
  int64_t n_parts_ = 1;  // added so far, with the first
  std::map<std::string_view, Value> values_;
  std::vector<Tensor> tensors_;
  std::map<std::string_view, size_t> tensor_of_;
};

}  // namespace tandem::engine
