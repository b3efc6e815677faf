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

// The GGUF container, versions 2 and 3, little endian: "GGUF", u32 version, u64 numbers of tensors
// and of keys, the keys and their values, a description of each tensor, and from the next multiple
// of `general.alignment` on the data. Everything is checked before the first value is handed out,
// and nothing is allocated because a count says so: every item that is kept has been read. Faults
// throw kDataLoss with one line naming the file and the key or tensor; versions, orders of bytes
// and tensor types that we do not read throw kUnsupported naming them. Immutable; any thread.
//
// Whatever keys and names mean is told elsewhere (gguf_model.h).
class GgufFile {
 public:
  // Far above known files, and small enough that reading a hostile one costs no more than its size.
  static constexpr uint64_t kMaxKeys = 1 << 16;
  static constexpr uint64_t kMaxTensors = 100'000;
  static constexpr uint64_t kMaxArrayItems = 1 << 20;
  static constexpr int kMaxArrayDepth = 4;
  // Of keys and tensors; of the strings of an array and other strings only where somebody asks for
  // them: files carry whole tokenizers of other programs.
  static constexpr uint64_t kMaxNameBytes = 1 << 16;
  static constexpr uint64_t kMaxStringBytes = 1 << 20;  // chat templates are the longest

  // What a value is, by the numbers of the format.
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
  // The bytes must outlive it; `name` is used in messages.
  static GgufFile FromBytes(std::span<const std::byte> bytes, const std::string& name);

  // A model may lie in several files, X-00001-of-00003.gguf and on: `split.count` files, each with
  // its `split.no` and some of the tensors; the keys that tell the model are in the first. These
  // are the others, beside `path`, the first one; empty for a whole file. Throws kNotFound naming
  // the one that is missing, kUnsupported where `path` is empty (bytes), or not the first one.
  std::vector<std::filesystem::path> FindOtherParts(const std::filesystem::path& path) const;
  // Takes the tensors of the next part, whose bytes must outlive this too. Throws kDataLoss where
  // it is the part of something else.
  void AddPart(const GgufFile& part);
  // After the last one; throws kDataLoss where tensors are missing (`split.tensors.count`).
  void CheckParts() const;

  const std::string& name() const { return name_; }
  bool Has(std::string_view key) const { return values_.contains(key); }
  bool IsArray(std::string_view key) const;
  // The value of a key, nullopt where there is none; throw kDataLoss where it is of another kind.
  // Numbers of any width count as long as they fit. Strings are valid UTF-8 within the limits.
  std::optional<int64_t> Int(std::string_view key) const;
  std::optional<double> Number(std::string_view key) const;
  std::optional<bool> Bool(std::string_view key) const;
  std::optional<std::string_view> String(std::string_view key) const;
  std::optional<std::vector<std::string_view>> Strings(std::string_view key) const;
  std::optional<std::vector<int64_t>> Ints(std::string_view key) const;  // and of booleans
  std::optional<std::vector<float>> Floats(std::string_view key) const;
  std::optional<std::string_view> Bytes(std::string_view key) const;  // an array of 8-bit numbers

  const std::vector<Tensor>& tensors() const { return tensors_; }  // in the order of the files
  const Tensor* Find(std::string_view name) const;                 // null when absent

  // For whoever finds that what a key says cannot be: kDataLoss, kUnsupported.
  [[noreturn]] void Broken(std::string_view key, const std::string& what) const;
  [[noreturn]] void Unsupported(std::string_view key, const std::string& what) const;

 private:
  struct Value {
    Type type;
    Type item = Type::kU8;  // of an array
    uint64_t count = 1;
    std::span<const std::byte> bytes;  // a string's, or the value; of an array all items
  };
  class Reader;

  const Value* Get(std::string_view key) const;
  void CheckText(std::string_view key, const std::string& which, std::string_view text,
                 uint64_t most) const;
  const Value* GetArray(std::string_view key) const;

  std::string name_;
  int64_t n_parts_ = 1;  // that were taken
  std::map<std::string_view, Value> values_;
  std::vector<Tensor> tensors_;
  std::map<std::string_view, size_t> tensor_of_;
};

}  // namespace tandem::engine
