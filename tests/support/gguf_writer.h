#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/stored/stored_tensor.h"

namespace tandem::tests {

// Writes GGUF files, honest ones and others: nothing is checked.
class GgufWriter {
 public:
  uint32_t version = 3;
  uint64_t alignment = 32;  // of the data; the key is only there if a test adds it

  void Add(std::string_view key, std::string_view text);
  void Add(std::string_view key, const char* text) { Add(key, std::string_view(text)); }
  void Add(std::string_view key, uint32_t value);
  void Add(std::string_view key, float value);
  void Add(std::string_view key, bool value);
  void Add(std::string_view key, const std::vector<std::string>& values);
  void Add(std::string_view key, const std::vector<float>& values);
  void Add(std::string_view key, const std::vector<int32_t>& values);
  // A key whose value is whatever bytes are given.
  void AddRaw(std::string_view key, uint32_t type, std::string_view bytes);
  // `shape` outermost axis first; the file has them the other way round.
  void AddTensor(std::string_view name, uint32_t type, const std::vector<int64_t>& shape,
                 const std::string& bytes);
  // A description with whatever it claims; `bytes` are in the data all the same.
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
// The number of an encoding in a file.
uint32_t GgufTypeOf(engine::Encoding encoding);

// Blocks of an encoding with bytes as good as random, whose scales are finite. The same for the
// same arguments: the numbers of a linear congruential generator.
std::string RandomBlocks(engine::Encoding encoding, int64_t n_blocks);
// Rows of f32 rounded to Q8_0 or Q4_0, as GGUF's own program does.
std::string Quantize(engine::Encoding encoding, std::span<const float> values);

struct GgufModelOptions {
  engine::Encoding matrices = engine::Encoding::kPlain;  // else Q8_0, Q4_0 where rows allow it
  // A small SentencePiece one, with a piece for each byte if 264 tokens or more are there.
  bool with_vocabulary = false;
};
// A Hugging Face directory as GGUF's converter would write it: f32, other names, rows of q and k in
// pairs, norms plus 1, matrices of GPT-2 turned. Families: those that engine/io reads.
GgufWriter ConvertToGguf(const std::filesystem::path& model_dir, const GgufModelOptions& options);

}  // namespace tandem::tests
