#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/families/config.h"
#include "engine/tensor/dtype.h"

namespace tandem::bench {

// `tandem bench make-model`: Hugging Face directories of random weights in typical shapes. They
// load and run like real checkpoints; their text is nonsense.
struct ModelShape {
  const char* name;
  const char* description;
  engine::ModelConfig (*config)();
};
const std::vector<ModelShape>& ModelShapes();

// Writes shape `name` in bf16 or f32, with a tokenizer of its whole vocabulary and its first
// `n_layers` layers, or all (0). `dir` must not exist; it appears whole. Throws kInvalidArgument
// for an unknown name and for too many layers.
void MakeModel(const std::string& name, const std::filesystem::path& dir, int64_t n_layers = 0,
               engine::DType stored = engine::DType::kBF16);

// Likewise for a config of your own, with the text of a tokenizer.json of its whole vocabulary.
void MakeModel(engine::ModelConfig config, const std::string& tokenizer_json,
               const std::filesystem::path& dir, engine::DType stored = engine::DType::kBF16);

// Returns a byte-level BPE tokenizer.json of exactly `vocab_size` tokens: ids 0..255 are the bytes,
// 256 is <|endoftext|>. The rest are syllables of a consonant and a vowel: alone, after a space,
// and joined to words of two and three. REQUIRES: 257 <= vocab_size <= 1,180,142.
std::string SyllableTokenizerJson(int64_t vocab_size);

}  // namespace tandem::bench
