#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::tests {

// Writes GGUF files, valid or not: it checks nothing.
class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; tests add the key themselves

  void Add(std::string_view key, std::string_view text);
  void Add(std::string_view key, const char* text) { Add(key, std::string_view(text)); }
  void Add(std::string_view key, uint32_t value);
  void Add(std::string_view key, float value);
  void Add(std::string_view key, bool value);
  void Add(std::string_view key, const std::vector<std::string>& values);
  void Add(std::string_view key, const std::vector<float>& values);
  void Add(std::string_view key, const std::vector<int32_t>& values);
  // Adds a key with arbitrary bytes as its value.
  void AddRaw(std::string_view key, uint32_t type, std::string_view bytes);
  // `shape` has the outermost axis first; the file stores the reverse.
  void AddTensor(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                 const std::string& bytes);
  // Adds an arbitrary description; `bytes` go into the data in any case.
  void AddTensorRaw(std::string_view name, uint32_t type, const std::vector<uint64_t>& file_shape,
                    uint64_t offset, const std::string& bytes);

  std::string Bytes() const;
  void Write(const std::filesystem::path& path) const;

 private:
  std::string keys_, tensors_, data_;
  uint64_t n_keys_ = 0, n_tensors_ = 0;
};

// Little-endian bytes.
std::string U32(uint32_t value);
std::string U64(uint64_t value);
std::string GgufString(std::string_view text);  // u64 length, bytes

inline constexpr uint32_t kGgufF32 = 0, kGgufF16 = 1, kGgufQ4_0 = 2, kGgufQ8_0 = 8, kGgufBf16 = 30;
// The type number of an encoding in a GGUF file.
uint32_t GgufTypeOf(engine::Encoding encoding);

// Blocks of pseudo-random bytes with finite scales. Deterministic: a linear congruential generator.
std::string RandomBlocks(engine::Encoding encoding, int64_t n_blocks);
// Rounds rows of f32 to Q8_0 or Q4_0, as llama.cpp does.
std::string Quantize(engine::Encoding encoding, std::span<const float> values);

struct GgufModelOptions {
  engine::Encoding matrices = engine::Encoding::kPlain;  // Q8_0, Q4_0: where rows allow it
  bool with_vocabulary = false;
};
// Whether ConvertToGguf knows the model's family.
bool CanConvertToGguf(const std::filesystem::path& model_dir);
// Converts a Hugging Face directory as llama.cpp's converter does. Values are f32 under GGUF names;
// rows of q and k are in pairs, norms plus 1, GPT-2 matrices transposed.
// REQUIRES: CanConvertToGguf(model_dir)
GgufWriter ConvertToGguf(const std::filesystem::path& model_dir, const GgufModelOptions& options);

}  // namespace tandem::tests
