#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/formats/gguf/gguf.h"
#include "engine/io/posix_file.h"

namespace tandem::convert {

// Writes the GGUF container: version 3, little endian, data aligned to 32 bytes. Other headers
// define the keys and names (gguf_config.h, gguf_tokenizer.h, gguf_tensors.h).

inline constexpr int64_t kGgufAlignment = 32;

// Encoding of a tensor, in the format's numbering.
enum class GgufNumbers : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ8_0 = 8, kBF16 = 30 };

struct GgufTensorInfo {
  std::string name;
  std::vector<int64_t> shape;  // outermost axis first
  GgufNumbers numbers = GgufNumbers::kF32;
};

// Keys and values in the order of Add. Throws kUnsupported naming the key for an array, text or
// name that is too long for GgufFile. One thread.
class GgufKeys {
 public:
  // Supports texts, booleans, numbers of every width, and arrays (std::vector) of them.
  void Add(std::string_view key, std::string_view text);
  void Add(std::string_view key, const char* text) { Add(key, std::string_view(text)); }
  void Add(std::string_view key, const std::vector<std::string>& texts);
  void Add(std::string_view key, const std::vector<bool>& values);
  template <class T>
  requires std::is_arithmetic_v<T>
  void Add(std::string_view key, T value) {
    Begin(key, TypeOf<T>());
    Append(value);
  }
  template <class T>
  requires std::is_arithmetic_v<T>
  void Add(std::string_view key, const std::vector<T>& values) {
    BeginArray(key, TypeOf<T>(), values.size());
    for (const T value : values) Append(value);
  }

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  template <class T>
  static constexpr engine::GgufFile::Type TypeOf() {
    using Type = engine::GgufFile::Type;
    if constexpr (std::is_same_v<T, bool>) return Type::kBool;
    if constexpr (std::is_same_v<T, float>) return Type::kF32;
    if constexpr (std::is_same_v<T, double>) return Type::kF64;
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) return kSigned ? Type::kI8 : Type::kU8;
    if constexpr (sizeof(T) == 2) return kSigned ? Type::kI16 : Type::kU16;
    if constexpr (sizeof(T) == 4) return kSigned ? Type::kI32 : Type::kU32;
    return kSigned ? Type::kI64 : Type::kU64;
  }
  template <class T>
  void Append(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }
  void AppendText(std::string_view key, std::string_view text, uint64_t most);
  void Begin(std::string_view key, engine::GgufFile::Type type);
  void BeginArray(std::string_view key, engine::GgufFile::Type item, size_t count);

  std::string bytes_;
  uint64_t count_ = 0;
};

// Returns the bytes of `elements` numbers. REQUIRES: whole blocks.
int64_t GgufBytes(GgufNumbers numbers, int64_t elements);

// A GGUF file. The constructor writes keys and descriptions and reserves the whole file, so a full
// disk shows before any computation. Any thread may then write data in pieces. Throws kUnsupported
// for more tensors or keys than GgufFile reads, kIo naming the file.
class GgufFileWriter {
 public:
  GgufFileWriter(const std::filesystem::path& path, const GgufKeys& keys,
                 std::span<const GgufTensorInfo> tensors);

  // Whether a file of the same length existed; its data is kept. Any other file was replaced.
  bool found() const { return found_; }
  const std::filesystem::path& path() const { return path_; }
  // Writes bytes of a tensor at `offset` within it. Throws kIo.
  void Write(size_t tensor, int64_t offset, std::span<const std::byte> bytes) const;
  // Syncs and closes the file; throws kIo. Without it the file may be incomplete.
  void Finish();

 private:
  void Open(int64_t bytes);

  std::filesystem::path path_;
  engine::FileDescriptor file_;
  bool found_ = false;
  std::vector<int64_t> begins_;  // file offset of each tensor's data
  std::vector<int64_t> sizes_;
};

}  // namespace tandem::convert
