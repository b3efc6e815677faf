#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/training/bpe_trainer.h"
#include "tests/support/paths.h"

namespace tandem::engine {

inline constexpr auto kTextOnly = SpecialTokens::kPlainText;
inline constexpr auto kParse = SpecialTokens::kParseSpecial;

// Data outside this repository; tests that need it skip and name it.
inline std::filesystem::path SharedData() { return tests::SharedDir() / "data"; }

inline std::optional<std::string> ReadIfThere(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline TokenizerFiles LoadJson(std::string json) {
  return *LoadTokenizer({.source = "test",
                         .tokenizer_json = std::move(json),
                         .vocab_json = {},
                         .merges_txt = {},
                         .tokenizer_config_json = {},
                         .chat_template_jinja = {}});
}

inline const std::string& TinyCorpus() {
  static const std::string corpus = [] {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += "Once upon a time there was a little dog who didn't like the rain.\n";
      text += "The dog ran home, and 12 cats were there\u2014na\u00efve caf\u00e9 cats!\n\n";
      text += "She said: \"I'll be here, you've been there.\"  aaaa aaaaaaa\t\t<|end|>";
    }
    return text;
  }();
  return corpus;
}

inline const std::string& TinyTokenizerJson() {
  static const std::string json = TrainBpe(
      TinyCorpus(),
      {.vocab_size = 340, .min_pair_count = 2, .special_tokens = {"<|end|>", "<|user|>"}}, {});
  return json;
}

// Random characters of every kind in the patterns, with invalid bytes on request.
inline std::string RandomText(std::mt19937_64& random, size_t characters, bool with_invalid) {
  static const std::vector<std::string> kInteresting = {
      " ",        " ",          "  ",     "\t",         "\n",     "\r\n",   "'s",
      "'ll",      "'",          "'re",    "'v",         "a",      "Z",      "the",
      "dog",      "7",          "42",     "!",          "...",    "\u00A0", "\u2028",
      "\u3000",   "\u180E",     "\u200B", "\u0301",     "\u00e9", "\u0416", "\u4e2d\u6587",
      "\u0663",   "\u00bd",     "\u2167", "\U0001F602", "\u1F00", "_",      "<|end|>",
      "<|user|>", "\U000E0041", "\x01",   "\u0085",     "\u2581"};
  static const std::vector<std::string> kInvalid = {
      "\xFF", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\x80", "\xED\xA0\x80", "\xC0\xAF"};
  std::string text;
  for (size_t i = 0; i < characters; ++i) {
    const uint64_t dice = random() % 100;
    if (dice < 80) {
      text += kInteresting[random() % kInteresting.size()];
    } else if (dice < 90) {
      // Ranges without letters of recent Unicode versions: ICU and PCRE2 have different versions.
      uint32_t c = static_cast<uint32_t>(random() % 0x10000);
      if (random() % 4 == 0) c = 0x1F300 + c % 0x300;
      if (random() % 8 == 0) c = 0x20000 + c % 0xA000;
      if (c >= 0xD800 && c < 0xE000) c = 'x';
      if (c < 0x80) {
        text += static_cast<char>(c);
      } else if (c < 0x800) {
        text += static_cast<char>(0xC0 | c >> 6);
        text += static_cast<char>(0x80 | (c & 0x3F));
      } else if (c < 0x10000) {
        text += static_cast<char>(0xE0 | c >> 12);
        text += static_cast<char>(0x80 | (c >> 6 & 0x3F));
        text += static_cast<char>(0x80 | (c & 0x3F));
      } else {
        text += static_cast<char>(0xF0 | c >> 18);
        text += static_cast<char>(0x80 | (c >> 12 & 0x3F));
        text += static_cast<char>(0x80 | (c >> 6 & 0x3F));
        text += static_cast<char>(0x80 | (c & 0x3F));
      }
    } else if (with_invalid) {
      text += kInvalid[random() % kInvalid.size()];
    }
  }
  return text;
}

}  // namespace tandem::engine
