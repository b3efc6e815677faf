#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "engine/model/families/config.h"
#include "engine/tensor/dtype.h"

namespace tandem::bench {

// Models with random weights of any shape, as Hugging Face directories, for tests and benchmarks
// without a real checkpoint. A spec determines the written bytes, on every machine.
struct RandomModelSpec {
  engine::ModelConfig config;
  uint64_t seed = 1;
  engine::DType stored = engine::DType::kBF16;  // f32 or bf16
  // Also writes tokenizer.json (byte-level, ids 0..255 are the bytes, 256 is <|endoftext|>) and a
  // plain chat template. REQUIRES: vocab_size >= 257.
  bool with_tokenizer = false;
};

// Shapes to start from. The tiny ones have two or three layers, width 48, vocabulary 272, context
// 256 and, where the family has windows, windows of 24 tokens.
engine::ModelConfig TinyModelConfig(std::string_view family);
engine::ModelConfig TinyLlamaConfig();
engine::ModelConfig TinyMiniGptConfig();
engine::ModelConfig Llama1BConfig();  // Llama-3.2-1B
engine::ModelConfig Gemma2BConfig();  // Gemma 2 2B
// Qwen3-30B-A3B with fewer layers: each has 128 experts, of which a token passes 8.
engine::ModelConfig Qwen3MoeConfig(int64_t n_layers);

// Publishes `dir` as a whole; it must not exist. Above 512 MiB the matrices share one pool of
// random numbers, so memory stays at the largest weight; speed does not depend on the values.
void WriteRandomModel(const RandomModelSpec& spec, const std::filesystem::path& dir);

}  // namespace tandem::bench
