#include "convert/formats/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "convert/formats/gguf/gguf_vocabulary.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_pretokenizers.h"
#include "engine/io/json.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::convert {
namespace {

using engine::SpecialTokens;
using engine::Tokenizer;
using engine::TokenizerFiles;

// Texts that tell tokenizers apart: white space, digits, contractions, scripts, marks, emoji.
constexpr auto kProbes = std::to_array<std::string_view>({
    "Once upon a time, there was a little girl named Lily.",
    " leading and trailing ",
    "two  spaces,   three,    four\tand a tab\n\nand lines\r\n \n  \n",
    "1 12 123 1234 12345 3.14 1,000,000 0x1F 2^10",
    "I'm we'll they'RE it'S don't 'tis ''quoted''",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2; }  // done...",
    "naïve café Straße ÆØÅ İstanbul e\u0301 ﬁne",
    "Привет, мир! Γειά σου κόσμε. שלום עולם مرحبا",
    "你好，世界。こんにちは 안녕하세요 ภาษาไทย हिन्दी",
    "😀👩‍👩‍👧🏽🇩🇪 ✅ \u200b\u00a0\u2028",
    "<s> </s> <unk> <|endoftext|> <|im_start|>user [INST] <0x0A> ▁x",
    "\xf0\x9f \xff bytes that are no characters \xc3",
});

void AddTexts(const GgufVocabulary& vocabulary, GgufKeys& keys) {
  std::vector<std::string> texts;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (const GgufVocabulary::Token& token : vocabulary.tokens) {
    texts.push_back(token.text);
    scores.push_back(token.score);
    types.push_back(static_cast<int32_t>(token.type));
  }
  keys.Add("tokenizer.ggml.model", vocabulary.model);
  keys.Add("tokenizer.ggml.pre", vocabulary.pre);
  keys.Add("tokenizer.ggml.tokens", texts);
  keys.Add("tokenizer.ggml.token_type", types);
  if (vocabulary.model == engine::kGgufByteLevelBpe) {
    keys.Add("tokenizer.ggml.merges", vocabulary.merges);
    return;
  }
  keys.Add("tokenizer.ggml.scores", scores);
  keys.Add("tokenizer.ggml.add_space_prefix", vocabulary.add_space_prefix);
  if (vocabulary.remove_extra_whitespaces) {
    keys.Add("tokenizer.ggml.remove_extra_whitespaces", true);
  }
  if (!vocabulary.charsmap.empty()) {
    keys.Add("tokenizer.ggml.precompiled_charsmap",
             std::vector<uint8_t>(vocabulary.charsmap.begin(), vocabulary.charsmap.end()));
  }
}

// Makes the number of tokens that of the embeddings. Ids without a token become padding; a token
// without an embedding is dropped, or refused if it is a normal one.
void FitTo(int64_t vocab_size, const Tokenizer& tokenizer, const std::string& source,
           GgufVocabulary& vocabulary) {
  std::vector<GgufVocabulary::Token>& tokens = vocabulary.tokens;
  for (size_t id = static_cast<size_t>(vocab_size); id < tokens.size(); ++id) {
    if (tokens[id].text.empty()) continue;
    if (tokens[id].type == SentencePieceType::kNormal) {
      throw Error(ErrorCode::kUnsupported, source + ": the tokenizer has " +
                                               std::to_string(tokens.size()) +
                                               " tokens, but the model has only " +
                                               std::to_string(vocab_size) + " embeddings");
    }
    vocabulary.warnings.push_back("token " + Quoted(tokens[id].text) +
                                  " has no embedding, so it is left out");
  }
  tokens.resize(static_cast<size_t>(vocab_size));
  for (size_t id = 0; id < tokens.size(); ++id) {
    GgufVocabulary::Token& token = tokens[id];
    if (token.text.empty()) {
      token = {"[PAD" + std::to_string(id) + "]", 0, SentencePieceType::kUnused};
    } else if (token.type == SentencePieceType::kNormal &&
               tokenizer.IsSpecial(static_cast<TokenId>(id))) {
      token.type = SentencePieceType::kControl;
    }
  }
}

nlohmann::ordered_json ObjectIn(const ModelSource& source, const char* file) {
  const auto text = source.ReadText(file);
  return text ? engine::ParseUntrustedJson(*text, source.name() + "/" + file)
              : nlohmann::ordered_json::object();
}

// Returns a token named in tokenizer_config.json, as "<pad>" or {"content": "<pad>"}.
std::optional<TokenId> NamedToken(const nlohmann::ordered_json& config, const char* field,
                                  const Tokenizer& tokenizer) {
  const auto found = config.find(field);
  if (found == config.end()) return std::nullopt;
  const auto& value =
      found->is_object() && found->contains("content") ? (*found)["content"] : *found;
  if (!value.is_string()) return std::nullopt;
  return tokenizer.FindToken(value.get<std::string>());
}

class SpecialKeys {
 public:
  SpecialKeys(int64_t vocab_size, GgufKeys& keys) : vocab_size_(vocab_size), keys_(keys) {}

  void Add(const char* key, std::optional<TokenId> id) {
    if (!id || *id < 0 || *id >= vocab_size_) return;
    keys_.Add(std::string("tokenizer.ggml.") + key, static_cast<uint32_t>(*id));
  }

 private:
  int64_t vocab_size_;
  GgufKeys& keys_;
};

// Returns further tokens that end an answer, except those that GGUF readers know by name.
std::vector<TokenId> OtherEnds(const nlohmann::ordered_json& generation,
                               const engine::ModelConfig& config, const Tokenizer& tokenizer,
                               std::optional<TokenId> eos) {
  std::vector<TokenId> ends = config.eos_tokens;
  if (const auto found = generation.find("eos_token_id"); found != generation.end()) {
    const auto take = [&](const nlohmann::ordered_json& id) {
      if (id.is_number_integer()) ends.push_back(id.get<TokenId>());
    };
    if (found->is_array()) {
      for (const auto& id : *found) take(id);
    } else {
      take(*found);
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  std::erase_if(
      ends, [&](TokenId id) { return id == eos || engine::IsGgufEnd(tokenizer.TokenBytes(id)); });
  return ends;
}

void AddSpecial(const ModelSource& source, const engine::ModelConfig& config,
                const TokenizerFiles& files, GgufKeys& keys, std::vector<std::string>* warnings) {
  const auto tokenizer_config = ObjectIn(source, "tokenizer_config.json");
  const Tokenizer& tokenizer = *files.tokenizer;
  std::optional<TokenId> bos = files.bos, eos = files.eos;
  if (!bos && config.bos_token >= 0) bos = config.bos_token;
  if (!eos && !config.eos_tokens.empty()) eos = config.eos_tokens.front();
  SpecialKeys special(config.vocab_size, keys);
  special.Add("bos_token_id", bos);
  special.Add("eos_token_id", eos);
  auto unknown = NamedToken(tokenizer_config, "unk_token", tokenizer);
  if (!unknown) unknown = tokenizer.FindToken("<unk>");
  special.Add("unknown_token_id", unknown);
  special.Add("padding_token_id", NamedToken(tokenizer_config, "pad_token", tokenizer));

  const auto ends = OtherEnds(ObjectIn(source, "generation_config.json"), config, tokenizer, eos);
  constexpr std::array kEndKeys = {"eot_token_id", "eom_token_id"};
  for (size_t i = 0; i < ends.size(); ++i) {
    if (i < kEndKeys.size()) {
      special.Add(kEndKeys[i], ends[i]);
    } else {
      warnings->push_back("token " + std::to_string(ends[i]) +
                          " also ends a turn, but GGUF has no further key for it");
    }
  }

  const bool starts_with_bos = files.prefix.empty() || files.prefix == std::vector{*files.bos};
  if (!starts_with_bos || files.suffix.size() > 1) {
    throw Error(ErrorCode::kUnsupported,
                source.name() +
                    ": the tokenizer adds several tokens around every text, which GGUF cannot "
                    "represent; convert the model to hf or native");
  }
  keys.Add("tokenizer.ggml.add_bos_token", files.add_bos);
  const bool add_eos =
      files.suffix.size() == 1 || engine::JsonBoolOr(tokenizer_config, "add_eos_token", false,
                                                     source.name() + "/tokenizer_config.json");
  keys.Add("tokenizer.ggml.add_eos_token", add_eos);
  if (files.chat_template) keys.Add("tokenizer.chat_template", *files.chat_template);
}

std::optional<TokenizerFiles> LoadTokenizer(const ModelSource& source) {
  return engine::LoadTokenizer(source.name(),
                               [&](std::string_view file) { return source.ReadText(file); });
}

// Hides config.json, which only tiktoken files need: a GGUF file with only a vocabulary lacks it.
std::optional<TokenizerFiles> LoadWritten(const ModelSource& written) {
  return engine::LoadTokenizer(written.name(), [&](std::string_view file) {
    return file == "config.json" ? std::nullopt : written.ReadText(file);
  });
}

// Returns the first text that the two encode or decode differently; null if there is none.
const std::string* FirstDifference(const Tokenizer& a, const Tokenizer& b, SpecialTokens special,
                                   const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    const std::vector<TokenId> ids = a.Encode(text, special);
    if (ids != b.Encode(text, special) ||
        Decode(a, ids, /*skip_special=*/false) != Decode(b, ids, /*skip_special=*/false)) {
      return &text;
    }
  }
  return nullptr;
}

}  // namespace

void AddGgufTokenizer(const ModelSource& source, const engine::ModelConfig& config, GgufKeys& keys,
                      std::vector<std::string>* warnings) {
  const auto files = LoadTokenizer(source);
  if (!files) {
    keys.Add("tokenizer.ggml.model", "no_vocab");
    SpecialKeys special(config.vocab_size, keys);
    if (config.bos_token >= 0) special.Add("bos_token_id", config.bos_token);
    if (!config.eos_tokens.empty()) special.Add("eos_token_id", config.eos_tokens.front());
    warnings->emplace_back("the model has no tokenizer; readers of the file accept only token ids");
    return;
  }
  auto vocabulary = ReadGgufVocabulary(
      source.name(), [&](std::string_view file) { return source.ReadText(file); });
  FitTo(config.vocab_size, *files->tokenizer, source.name(), vocabulary.value());
  AddTexts(*vocabulary, keys);
  AddSpecial(source, config, *files, keys, warnings);
  warnings->insert(warnings->end(), vocabulary->warnings.begin(), vocabulary->warnings.end());
}

void CompareTokenizers(const ModelSource& source, const ModelSource& written,
                       std::vector<std::string>* warnings) {
  const auto is = LoadTokenizer(source), other = LoadWritten(written);
  if (!is) return;
  if (!other)
    throw Error(ErrorCode::kInternal, written.name() + ": the written file has no tokenizer");
  std::vector<std::string> texts(kProbes.begin(), kProbes.end());
  // All tokens, 256 per text.
  constexpr TokenId kTogether = 256;
  for (TokenId id = 0; id < is->tokenizer->vocab_size(); ++id) {
    if (id % kTogether == 0) texts.emplace_back();
    if (!is->tokenizer->IsSpecial(id)) texts.back() += is->tokenizer->TokenBytes(id);
  }
  if (const std::string* text =
          FirstDifference(*is->tokenizer, *other->tokenizer, SpecialTokens::kPlainText, texts)) {
    throw Error(ErrorCode::kUnsupported, source.name() +
                                             ": the tokenizer in GGUF encodes or decodes " +
                                             Quoted(text->substr(0, 60)) +
                                             " differently; convert the model to hf or native");
  }
  if (const std::string* text =
          FirstDifference(*is->tokenizer, *other->tokenizer, SpecialTokens::kParseSpecial, texts)) {
    warnings->push_back("text next to special tokens may be encoded differently: " +
                        Quoted(text->substr(0, 60)));
  }
}

}  // namespace tandem::convert
