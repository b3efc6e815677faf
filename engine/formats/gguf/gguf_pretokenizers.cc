#include "engine/formats/gguf/gguf_pretokenizers.h"

#include <algorithm>
#include <array>

namespace tandem::engine {
namespace {

// The patterns come from the tokenizer.json of the models that the names refer to.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigit = R"(\p{N})";
constexpr std::string_view kDigits = R"(\p{N}+)";
constexpr std::string_view kThreeDigits = "[0-9][0-9][0-9]";
constexpr std::string_view kSigns = R"([\p{P}\$\+<=>\^~\|]+)";
constexpr std::string_view kFalconSigns = R"([\p{P}\$\+<=>\^~\|`]+)";

constexpr std::array kPlain{kGpt2};
constexpr std::array kDigitsApart{kDigit, kGpt2};
constexpr std::array kLikeLlama3{kLlama3};
constexpr std::array kLikeQwen2{kQwen2};
constexpr std::array kLikeTekken{kTekken};
constexpr std::array kLikeO200k{kO200k};
constexpr std::array kLikeFalcon{kFalconSigns, kGpt2, kThreeDigits};
// Pattern of llama.cpp for a vocabulary that names none.
constexpr std::array kDefault{kSigns, kGpt2, kDigits, kThreeDigits};

constexpr auto kPreTokenizers = std::to_array<GgufPreTokenizer>({
    {"default", kDefault},
    {"gpt-2", kPlain},
    {"phi-2", kPlain},
    {"mpt", kPlain, /*nfc=*/true},
    {"olmo", kPlain, /*nfc=*/true},
    {"llama-bpe", kLikeLlama3, false, /*ignore_merges=*/true, /*add_bos=*/true},
    {"llama3", kLikeLlama3, false, true, true},
    {"llama-v3", kLikeLlama3, false, true, true},
    {"falcon3", kLikeLlama3, false, true, true},
    {"pixtral", kLikeLlama3, false, true, true},
    {"smaug-bpe", kLikeLlama3},
    {"qwen2", kLikeQwen2, /*nfc=*/true},
    {"deepseek-r1-qwen", kLikeQwen2, /*nfc=*/true},
    {"smollm", kDigitsApart},
    {"starcoder", kDigitsApart},
    {"refact", kDigitsApart},
    {"command-r", kDigitsApart, /*nfc=*/true},
    {"falcon", kLikeFalcon},
    {"gpt-4o", kLikeO200k},
    {"tekken", kLikeTekken, false, /*ignore_merges=*/true, /*add_bos=*/true},
});

constexpr auto kEnds = std::to_array<std::string_view>(
    {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
     "<|end_of_text|>", "<EOT>", "_<EOT>", "<end_of_utterance>"});

}  // namespace

std::span<const GgufPreTokenizer> GgufPreTokenizers() { return kPreTokenizers; }

std::string_view ByteLevelPattern() { return kGpt2; }

bool IsGgufEnd(std::string_view text) {
  return std::find(kEnds.begin(), kEnds.end(), text) != kEnds.end();
}

}  // namespace tandem::engine
