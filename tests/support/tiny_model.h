#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::tests {

struct TinyModelOptions {
  int64_t vocab_size = 320;  // the special tokens, 256 bytes and a few merges
  int64_t hidden_dim = 32;
  int64_t n_layers = 2;
  int64_t max_context_len = 256;
  bool with_tokenizer = true;
  std::vector<std::string> special_tokens = {"<bos>", "<end>", "<turn>"};  // ids 0, 1, 2, …
  std::string chat_template =
      "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}: {{ m['content'] }}\n{% endfor "
      "%}{% if add_generation_prompt %}<turn>assistant: {% endif %}";
};

// Writes a small Llama model with random weights, always the same, and a byte-level tokenizer into
// `dir`. Its output is noise but reproducible, which is enough for tests.
void WriteTinyModel(const std::filesystem::path& dir, const TinyModelOptions& options);

}  // namespace tandem::tests
