#pragma once

#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::tests {

// Bytes are tokens 0 to 255 (GPT-2's characters in their order), "\n\n" is 256. Control tokens:
// <|im_start|> 257, <|im_end|> 258, <|end|> 259.
inline std::unique_ptr<engine::Tokenizer> ChatTokenizer() {
  using Json = nlohmann::ordered_json;
  const auto character = [](int byte) {
    const auto prints = [](int b) {
      return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    };
    int code = byte;
    if (!prints(byte)) {
      code = 0x100;
      for (int b = 0; b < byte; ++b) code += prints(b) ? 0 : 1;
    }
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return std::string{static_cast<char>(0xc0 | (code >> 6)),
                       static_cast<char>(0x80 | (code & 0x3f))};
  };
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[character(byte)] = byte;
  const std::string newline = character('\n');
  vocabulary[newline + newline] = 256;
  Json added = Json::array();
  int id = 257;
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<|end|>"}) {
    added.push_back({{"id", id++},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json byte_level{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json json{{"version", "1.0"},
                  {"added_tokens", added},
                  {"pre_tokenizer", byte_level},
                  {"decoder", byte_level},
                  {"model",
                   {{"type", "BPE"},
                    {"vocab", vocabulary},
                    {"merges", Json::array({newline + " " + newline})}}}};
  auto files = engine::LoadTokenizer("test", [&](std::string_view name) {
    return name == "tokenizer.json" ? std::optional(json.dump()) : std::nullopt;
  });
  return std::move(files->tokenizer);
}

inline constexpr const char* kChatMl =
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments | tojson }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// Like kChatMl, but only the last answer keeps its thought, which may be empty. Earlier turns
// change when another follows.
inline constexpr const char* kDropsThoughts =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>\n' + (m.reasoning_content or '') + '</think>\n\n' }}{% endif %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments | tojson }}"
    "{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// Like kChatMl, but the generation prompt opens a thought, and written answers have none.
inline constexpr const char* kOpensThought =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";

// Like kChatMl, but a whole chat ends with <|end|>: the end of a turn moves when another follows.
inline constexpr const char* kEndsWhole =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{{ '<|im_start|>assistant\n' if add_generation_prompt else '<|end|>' }}";

}  // namespace tandem::tests
