#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "engine/base/error.h"
#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/formats/gguf/gguf_pretokenizers.h"
#include "engine/formats/gguf/gguf_words.h"
#include "engine/formats/stored/sentencepiece_text.h"
#include "engine/model/families/gguf_config.h"

// Generates the tokenizer files that engine/tokenizer reads from a GGUF vocabulary. Each kind of
// tokenizer so has one reader.
namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kModelKey = "tokenizer.ggml.model";
constexpr std::string_view kPreKey = "tokenizer.ggml.pre";
constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kTypesKey = "tokenizer.ggml.token_type";
constexpr std::string_view kScoresKey = "tokenizer.ggml.scores";
constexpr std::string_view kMergesKey = "tokenizer.ggml.merges";
constexpr std::string_view kAddBosKey = "tokenizer.ggml.add_bos_token";
constexpr std::string_view kAddEosKey = "tokenizer.ggml.add_eos_token";

const GgufPreTokenizer& FindPreTokenizer(const GgufFile& file) {
  const std::string_view name = file.String(kPreKey).value_or("default");
  std::string supported;
  for (const GgufPreTokenizer& known : GgufPreTokenizers()) {
    if (known.name == name) return known;
    supported += (supported.empty() ? "" : ", ") + std::string(known.name);
  }
  file.Unsupported(kPreKey, "is " + Quoted(name) + "; supported are " + supported);
}

enum class Kind { kNone, kBpe, kPieceBpe, kSentencePiece, kUnigram };

Kind KindOf(const GgufFile& file) {
  const auto name = file.String(kModelKey);
  if (!name || *name == "no_vocab" || *name == "none") return Kind::kNone;
  if (*name == kGgufByteLevelBpe) return Kind::kBpe;
  if (*name == kGgufPieceBpe) return Kind::kPieceBpe;
  if (*name == kGgufSentencePiece) return Kind::kSentencePiece;
  if (*name == kGgufUnigram) return Kind::kUnigram;
  file.Unsupported(kModelKey, "is " + Quoted(*name) + "; supported are " +
                                  std::string(kGgufByteLevelBpe) + ", " +
                                  std::string(kGgufSentencePiece) + ", " +
                                  std::string(kGgufPieceBpe) + " and " + std::string(kGgufUnigram));
}

// Tokens and their SentencePiece types, by id.
struct Tokens {
  std::vector<std::string_view> texts;
  std::vector<SentencePieceType> types;
  // Tokens that end an answer but that older converters wrote as user-defined. They count as
  // control tokens, as in llama.cpp: client text must not produce them.
  std::vector<std::string_view> retyped = {};

  std::optional<std::string_view> At(std::optional<int64_t> id) const {
    if (!id || *id < 0 || static_cast<size_t>(*id) >= texts.size()) return std::nullopt;
    return texts[static_cast<size_t>(*id)];
  }
};

void CheckCount(const GgufFile& file, std::string_view key, size_t count, size_t tokens) {
  if (count == tokens) return;
  file.Broken(key,
              "has " + std::to_string(count) + " items for " + std::to_string(tokens) + " tokens");
}

Tokens ReadTokens(const GgufFile& file) {
  const auto texts = file.Strings(kTokensKey);
  if (!texts) throw Error(ErrorCode::kDataLoss, file.name() + ": no key " + Quoted(kTokensKey));
  Tokens tokens{*texts, std::vector<SentencePieceType>(texts->size(), SentencePieceType::kNormal)};
  const auto types = file.Ints(kTypesKey);
  if (!types) return tokens;
  CheckCount(file, kTypesKey, types->size(), texts->size());
  for (size_t i = 0; i < types->size(); ++i) {
    const int64_t type = (*types)[i];
    if (type < 0 || type > 6) {
      file.Broken(kTypesKey, "has the unknown type " + std::to_string(type) + " of token " +
                                 std::to_string(i));
    }
    if (type > 0) tokens.types[i] = static_cast<SentencePieceType>(type);
    if (tokens.types[i] == SentencePieceType::kUserDefined && IsGgufEnd(tokens.texts[i])) {
      tokens.types[i] = SentencePieceType::kControl;
      tokens.retyped.push_back(tokens.texts[i]);
    }
  }
  return tokens;
}

// Runs once per tokenizer, when the vocabulary is read.
void WarnOfRetyped(const GgufFile& file, const Tokens& tokens) {
  if (tokens.retyped.empty()) return;
  std::string names;
  for (const std::string_view text : tokens.retyped) {
    names += (names.empty() ? "" : ", ") + std::string(text);
  }
  spdlog::warn(
      "{}: key {} gives end-of-turn tokens a user-defined type; they are treated as control "
      "tokens: {}",
      file.name(), Quoted(kTypesKey), names);
}

Json PreTokenizerJson(const GgufPreTokenizer& pre) {
  Json stages = Json::array();
  for (const std::string_view pattern : pre.patterns) {
    stages.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  stages.push_back({{"type", "ByteLevel"},
                    {"add_prefix_space", false},
                    {"trim_offsets", true},
                    {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
}

constexpr auto kEndKeys = std::to_array<std::string_view>(
    {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"});

// The transformers class that reads our tokenizer files unchanged. Without it transformers chooses
// a class by model type and builds another tokenizer.
std::string_view TokenizerClassOf(const GgufFile& file, Kind kind) {
  if (kind == Kind::kBpe || kind == Kind::kPieceBpe) return "PreTrainedTokenizerFast";
  if (kind == Kind::kUnigram) return "T5Tokenizer";
  const FamilySpec* family = FindGgufFamily(file.String("general.architecture").value_or(""));
  return (family == nullptr ? GgufArchitecture{} : *family->gguf).sentencepiece_class;
}

// Recommended sampling of a file: GGUF key -> field of generation_config.json.
struct SamplingKey {
  std::string_view gguf;
  const char* hf;
};
constexpr auto kSamplingKeys = std::to_array<SamplingKey>({
    {"general.sampling.temp", "temperature"},
    {"general.sampling.top_p", "top_p"},
    {"general.sampling.min_p", "min_p"},
    {"general.sampling.top_k", "top_k"},
    {"general.sampling.penalty_repeat", "repetition_penalty"},
});

void AddSampling(const GgufFile& file, Json* json) {
  for (const SamplingKey& key : kSamplingKeys) {
    const std::optional<double> number = file.Number(key.gguf);
    if (!number) continue;
    const bool is_whole = key.gguf == std::string_view("general.sampling.top_k");
    (*json)[key.hf] = is_whole ? Json(file.Int(key.gguf).value_or(0)) : Json(Shortest(*number));
  }
  // transformers ignores the fields above without do_sample.
  if (json->contains("temperature")) (*json)["do_sample"] = (*json)["temperature"] > 0;
}

}  // namespace

namespace {

// The stages around the merges of a tokenizer.json.
struct BpeStages {
  Json normalizer, pre_tokenizer, decoder;
  bool ignore_merges = false;
  bool has_bytes = false;  // unknown characters become tokens of their bytes
};

BpeStages ByteLevelStages(const GgufFile& file) {
  const GgufPreTokenizer& pre = FindPreTokenizer(file);
  if (!file.Has(kPreKey)) {
    spdlog::warn(
        "{}: key {} is missing, so text may be split differently than in training; convert the "
        "model again",
        file.name(), Quoted(kPreKey));
  }
  return {.normalizer = pre.nfc ? Json{{"type", "NFC"}} : Json(nullptr),
          .pre_tokenizer = PreTokenizerJson(pre),
          .decoder = {{"type", "ByteLevel"},
                      {"add_prefix_space", false},
                      {"trim_offsets", true},
                      {"use_regex", false}},
          .ignore_merges = pre.ignore_merges};
}

// As Google's tokenizer.json of Gemma: its split finds no spaces, since they were replaced before.
BpeStages PieceStages() {
  const auto replace = [](const char* from, const char* to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json decoders = Json::array();
  decoders.push_back(replace("\xE2\x96\x81", " "));
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  return {.normalizer = replace(" ", "\xE2\x96\x81"),
          .pre_tokenizer = {{"type", "Split"},
                            {"pattern", {{"String", " "}}},
                            {"behavior", "MergedWithPrevious"},
                            {"invert", false}},
          .decoder = {{"type", "Sequence"}, {"decoders", std::move(decoders)}},
          .has_bytes = true};
}

}  // namespace

std::optional<std::string> GgufTokenizerJson(const GgufFile& file) {
  const Kind kind = KindOf(file);
  if (kind != Kind::kBpe && kind != Kind::kPieceBpe) return std::nullopt;
  const BpeStages stages = kind == Kind::kBpe ? ByteLevelStages(file) : PieceStages();
  const Tokens tokens = ReadTokens(file);
  WarnOfRetyped(file, tokens);
  const auto merges = file.Strings(kMergesKey);
  if (!merges) throw Error(ErrorCode::kDataLoss, file.name() + ": no key " + Quoted(kMergesKey));

  Json added = Json::array();
  Json unknown = nullptr;
  // Written as text: building a tree searches all names at each insertion and takes minutes.
  std::string vocab = "{";
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    const SentencePieceType type = tokens.types[id];
    const Json text(tokens.texts[id]);
    vocab += (id == 0 ? "" : ",") + text.dump() + ":" + std::to_string(id);
    if (stages.has_bytes && type == SentencePieceType::kUnknown) unknown = text;
    const bool special = type == SentencePieceType::kControl || type == SentencePieceType::kUnknown;
    if (!special && type != SentencePieceType::kUserDefined) continue;
    added.push_back({{"id", id},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  vocab += "}";
  std::string rules = "[";
  for (const std::string_view merge : *merges) {
    if (rules.size() > 1) rules += ",";
    rules += Json(merge).dump();
  }
  rules += "]";

  const auto flag = [](bool is) { return is ? "true" : "false"; };
  return "{\"version\":\"1.0\",\"added_tokens\":" + added.dump() +
         ",\"normalizer\":" + stages.normalizer.dump() +
         ",\"pre_tokenizer\":" + stages.pre_tokenizer.dump() +
         ",\"post_processor\":null,\"decoder\":" + stages.decoder.dump() +
         ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":" + unknown.dump() +
         ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":" +
         flag(stages.has_bytes) + ",\"byte_fallback\":" + flag(stages.has_bytes) +
         ",\"ignore_merges\":" + flag(stages.ignore_merges) + ",\"vocab\":" + vocab +
         ",\"merges\":" + rules + "}}\n";
}

std::optional<std::string> GgufTokenizerModel(const GgufFile& file) {
  const Kind kind = KindOf(file);
  if (kind != Kind::kSentencePiece && kind != Kind::kUnigram) return std::nullopt;
  const Tokens tokens = ReadTokens(file);
  WarnOfRetyped(file, tokens);
  const auto scores = file.Floats(kScoresKey);
  if (!scores) throw Error(ErrorCode::kDataLoss, file.name() + ": no key " + Quoted(kScoresKey));
  CheckCount(file, kScoresKey, scores->size(), tokens.texts.size());

  SentencePieceText model;
  model.is_bpe = kind == Kind::kSentencePiece;
  const std::unordered_set<std::string_view> spelled(tokens.texts.begin(), tokens.texts.end());
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    SentencePieceType type = tokens.types[id];
    // Padding of the vocabulary. As control tokens they never match text.
    if (model.is_bpe && type == SentencePieceType::kUnused) type = SentencePieceType::kControl;
    std::string text(tokens.texts[id]);
    if (type == SentencePieceType::kUserDefined) {
      // Converters write spaces instead of U+2581 in these pieces only (Gemma's runs of spaces).
      // Piece lookup sees only U+2581.
      std::string marked = WithMetaspaces(text);
      if (!spelled.contains(marked)) text = std::move(marked);
    }
    model.pieces.push_back({std::move(text), (*scores)[id], type});
  }
  // Without these keys, use Llama 2's ids as llama.cpp does.
  model.bos = tokens.At(file.Int("tokenizer.ggml.bos_token_id").value_or(1)).value_or("");
  model.eos = tokens.At(file.Int("tokenizer.ggml.eos_token_id").value_or(2)).value_or("");
  model.add_dummy_prefix = file.Bool("tokenizer.ggml.add_space_prefix").value_or(true);
  model.remove_extra_whitespaces =
      file.Bool("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  model.charsmap = file.Bytes("tokenizer.ggml.precompiled_charsmap").value_or("");
  return WriteSentencePiece(model);
}

std::optional<std::string> GgufTokenizerConfigJson(const GgufFile& file) {
  const Kind kind = KindOf(file);
  if (kind == Kind::kNone) return std::nullopt;
  const Tokens tokens = ReadTokens(file);
  Json json = {{"tokenizer_class", TokenizerClassOf(file, kind)}};
  const auto add_token = [&](const char* field, std::string_view key) {
    const auto text = tokens.At(file.Int(key));
    if (text && !text->empty()) json[field] = *text;
  };
  add_token("bos_token", "tokenizer.ggml.bos_token_id");
  add_token("eos_token", "tokenizer.ggml.eos_token_id");
  add_token("unk_token", "tokenizer.ggml.unknown_token_id");
  add_token("pad_token", "tokenizer.ggml.padding_token_id");
  // Tokens of infilling; the keys without "fim" are older.
  add_token("prefix_token", "tokenizer.ggml.prefix_token_id");
  add_token("prefix_token", "tokenizer.ggml.fim_pre_token_id");
  add_token("suffix_token", "tokenizer.ggml.suffix_token_id");
  add_token("suffix_token", "tokenizer.ggml.fim_suf_token_id");
  add_token("middle_token", "tokenizer.ggml.middle_token_id");
  add_token("middle_token", "tokenizer.ggml.fim_mid_token_id");
  if (const auto add = file.Bool(kAddBosKey)) {
    json["add_bos_token"] = *add;
  } else if (kind == Kind::kBpe) {
    json["add_bos_token"] = FindPreTokenizer(file).add_bos;
  } else if (kind == Kind::kPieceBpe) {
    json["add_bos_token"] = true;
  }
  if (const auto add = file.Bool(kAddEosKey)) {
    json["add_eos_token"] = *add;
    if (*add) {
      spdlog::warn("{}: key {} asks for an end token after every text; only embeddings have it",
                   file.name(), Quoted(kAddEosKey));
    }
  }
  if (const auto text = file.String("tokenizer.chat_template")) json["chat_template"] = *text;
  return json.dump(2) + "\n";
}

namespace {

// In harmony, <|end|> ends a message of an answer; these two end the answer.
constexpr std::string_view kMessageEnd = "<|end|>";
constexpr std::array<std::string_view, 2> kHarmonyEnds = {"<|return|>", "<|call|>"};

bool IsHarmony(const Tokens& tokens) {
  return std::all_of(kHarmonyEnds.begin(), kHarmonyEnds.end(), [&](std::string_view text) {
    return std::find(tokens.texts.begin(), tokens.texts.end(), text) != tokens.texts.end();
  });
}

bool EndsAnswer(std::string_view text, bool is_harmony) {
  if (!is_harmony) return IsGgufEnd(text);
  if (text == kMessageEnd) return false;
  return IsGgufEnd(text) ||
         std::find(kHarmonyEnds.begin(), kHarmonyEnds.end(), text) != kHarmonyEnds.end();
}

}  // namespace

std::string GgufGenerationConfigJson(const GgufFile& file) {
  const bool has_tokens = KindOf(file) != Kind::kNone;
  const Tokens tokens = has_tokens ? ReadTokens(file) : Tokens{};
  const bool is_harmony = IsHarmony(tokens);
  std::vector<int64_t> ends;
  for (const std::string_view key : kEndKeys) {
    const auto id = file.Int(key);
    const auto text = tokens.At(id);
    if (text && !(is_harmony && *text == kMessageEnd)) ends.push_back(*id);
  }
  for (size_t id = 0; id < tokens.texts.size(); ++id) {
    if (tokens.types[id] == SentencePieceType::kControl &&
        EndsAnswer(tokens.texts[id], is_harmony)) {
      ends.push_back(static_cast<int64_t>(id));
    }
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  Json json = Json::object();
  if (!ends.empty()) json["eos_token_id"] = ends;
  AddSampling(file, &json);
  return json.dump(2) + "\n";
}

}  // namespace tandem::engine
