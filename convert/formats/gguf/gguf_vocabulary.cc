#include "convert/formats/gguf/gguf_vocabulary.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/gguf/gguf_pretokenizers.h"
#include "engine/tokenizer/files/json_value.h"
#include "engine/tokenizer/readers/sentencepiece.h"
#include "engine/tokenizer/readers/tiktoken.h"
#include "engine/tokenizer/readers/tokenizer_classes.h"

namespace tandem::convert {
namespace {

using engine::JsonDocument;
using engine::JsonValue;
using Token = GgufVocabulary::Token;

constexpr int64_t kMostTokens = 1 << 20;  // limit of a GGUF array
constexpr std::string_view kMetaspace = "\xE2\x96\x81";

[[noreturn]] void Refuse(const std::string& source, const std::string& what) {
  throw Error(
      ErrorCode::kUnsupported,
      source + ": " + what + ", which GGUF cannot represent; convert the model to hf or native");
}

std::string TextOf(const JsonValue& object, const char* field) {
  const auto value = object.Find(field);
  return std::string(value ? value->AsString().value_or("") : "");
}

bool FlagOf(const JsonValue& object, const char* field, bool fallback = false) {
  const auto value = object.Find(field);
  return value ? value->AsBool().value_or(fallback) : fallback;
}

std::string WithSpaces(std::string text) {
  for (size_t at = text.find(kMetaspace); at != std::string::npos; at = text.find(kMetaspace, at)) {
    text.replace(at, kMetaspace.size(), " ");
  }
  return text;
}

// Returns a component, or the components of a Sequence.
std::vector<JsonValue> Stages(const std::optional<JsonValue>& component, const char* list) {
  if (!component) return {};
  if (TextOf(*component, "type") != "Sequence") return {*component};
  std::vector<JsonValue> stages;
  if (const auto items = component->Find(list)) {
    items->ForEachItem([&](size_t, JsonValue item) { stages.push_back(item); });
  }
  return stages;
}

// ---- Byte-level BPE

// How tokenizer.json splits text before merging.
struct Cuts {
  std::vector<std::string> patterns;
  bool byte_level = false;
  std::string unsupported;  // the first unsupported part
};

Cuts ReadCuts(const JsonValue& root) {
  Cuts cuts;
  const auto refuse = [&](const std::string& what) {
    if (cuts.unsupported.empty()) cuts.unsupported = what;
  };
  for (const JsonValue& stage : Stages(root.Find("pre_tokenizer"), "pretokenizers")) {
    const std::string type = TextOf(stage, "type");
    if (type == "ByteLevel") {
      cuts.byte_level = true;
      if (FlagOf(stage, "add_prefix_space", true)) refuse("a ByteLevel with add_prefix_space");
      if (FlagOf(stage, "use_regex", true)) cuts.patterns.emplace_back(engine::ByteLevelPattern());
    } else if (type == "Digits") {
      cuts.patterns.emplace_back(FlagOf(stage, "individual_digits") ? R"(\p{N})" : R"(\p{N}+)");
    } else if (type == "Split") {
      const auto pattern = stage.Find("pattern");
      const std::string regex = pattern ? TextOf(*pattern, "Regex") : "";
      const std::string behavior = TextOf(stage, "behavior");
      const bool inverted = FlagOf(stage, "invert");
      // Removed and inverted keeps the matches; these patterns match every character.
      const bool keeps =
          (behavior == "Isolated" && !inverted) || (behavior == "Removed" && inverted);
      if (regex.empty() || !keeps) refuse("a Split other than Isolated with a Regex");
      cuts.patterns.push_back(regex);
    } else {
      refuse("pre_tokenizer " + Quoted(type));
    }
  }
  return cuts;
}

std::string FindPre(const std::vector<std::string>& patterns, bool nfc, bool ignore_merges,
                    const std::string& source) {
  std::string known;
  for (const engine::GgufPreTokenizer& pre : engine::GgufPreTokenizers()) {
    if (std::equal(pre.patterns.begin(), pre.patterns.end(), patterns.begin(), patterns.end()) &&
        pre.nfc == nfc && pre.ignore_merges == ignore_merges) {
      return std::string(pre.name);
    }
    known += (known.empty() ? "" : ", ") + std::string(pre.name);
  }
  std::string pattern;
  for (const std::string& one : patterns) pattern += (pattern.empty() ? "" : " then ") + one;
  Refuse(source, "the tokenizer splits text by " + Quoted(pattern) + (nfc ? " after NFC" : "") +
                     (ignore_merges ? " with ignore_merges" : "") + ", unlike GGUF's " + known);
}

bool ReadsNfc(const JsonValue& root, const std::string& source) {
  bool nfc = false;
  for (const JsonValue& stage : Stages(root.Find("normalizer"), "normalizers")) {
    const std::string type = TextOf(stage, "type");
    if (type != "NFC")
      Refuse(source,
             "the tokenizer has normalizer " + Quoted(type) + " in a byte-level vocabulary");
    nfc = true;
  }
  return nfc;
}

void ReadVocab(const JsonValue& vocab, const std::string& source, GgufVocabulary& out) {
  vocab.ForEachMember([&](std::string_view text, JsonValue id) {
    out.At(id.AsInt().value_or(-1), source).text = text;
  });
}

// Each merge is "a b" or ["a", "b"].
std::vector<std::pair<std::string, std::string>> ReadMerges(const JsonValue& model) {
  std::vector<std::pair<std::string, std::string>> merges;
  const auto list = model.Find("merges");
  if (!list) return merges;
  list->ForEachItem([&](size_t, JsonValue item) {
    if (const auto text = item.AsString()) {
      const size_t space = text->find(' ');
      merges.emplace_back(text->substr(0, space), text->substr(space + 1));
      return;
    }
    std::pair<std::string, std::string> pair;
    item.ForEachItem([&](size_t i, JsonValue part) {
      (i == 0 ? pair.first : pair.second) = part.AsString().value_or("");
    });
    merges.push_back(std::move(pair));
  });
  return merges;
}

// Reads added tokens, which are matched before anything else. With `spaces`, U+2581 in tokens that
// are not special becomes a space.
void ReadAdded(const JsonValue& root, bool spaces, const std::string& source, GgufVocabulary& out) {
  const auto added = root.Find("added_tokens");
  if (!added) return;
  std::string odd;
  added->ForEachItem([&](size_t, JsonValue item) {
    const std::string text = TextOf(item, "content");
    const auto id = item.Find("id");
    Token& token = out.At(id ? id->AsInt().value_or(-1) : -1, source);
    const bool special = FlagOf(item, "special");
    token.text = spaces && !special ? WithSpaces(text) : text;
    token.score = 0;
    if (token.type != SentencePieceType::kUnknown) {
      token.type = special ? SentencePieceType::kControl : SentencePieceType::kUserDefined;
    }
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      if (odd.empty() && FlagOf(item, flag)) odd = Quoted(text) + " has '" + flag + "'";
    }
  });
  if (!odd.empty()) {
    out.warnings.push_back(
        "added token " + odd +
        ", which GGUF cannot represent: text next to it may be encoded differently");
  }
}

GgufVocabulary ReadByteLevel(const JsonValue& root, const JsonValue& model, const Cuts& cuts,
                             const std::string& source) {
  if (!cuts.unsupported.empty()) Refuse(source, "the tokenizer has " + cuts.unsupported);
  GgufVocabulary out;
  out.model = engine::kGgufByteLevelBpe;
  out.pre = FindPre(cuts.patterns, ReadsNfc(root, source), FlagOf(model, "ignore_merges"), source);
  if (const auto vocab = model.Find("vocab")) ReadVocab(*vocab, source, out);
  for (const auto& [left, right] : ReadMerges(model)) {
    out.merges.push_back(left);
    out.merges.back().append(" ").append(right);
  }
  ReadAdded(root, /*spaces=*/false, source, out);
  return out;
}

// ---- BPE over pieces

// Whether text gets a leading space; refuses anything that SentencePiece does not do.
bool ReadsSpacePrefix(const JsonValue& root, const std::string& source) {
  bool prefix = false, escapes = false;
  for (const JsonValue& stage : Stages(root.Find("normalizer"), "normalizers")) {
    const std::string type = TextOf(stage, "type");
    const auto pattern = stage.Find("pattern");
    if (type == "Prepend" && TextOf(stage, "prepend") == kMetaspace) {
      prefix = true;
    } else if (type == "Replace" && pattern && TextOf(*pattern, "String") == " " &&
               TextOf(stage, "content") == kMetaspace) {
      escapes = true;
    } else {
      Refuse(source,
             "the tokenizer has normalizer " + Quoted(type) + " in a SentencePiece vocabulary");
    }
  }
  for (const JsonValue& stage : Stages(root.Find("pre_tokenizer"), "pretokenizers")) {
    const std::string type = TextOf(stage, "type");
    const auto pattern = stage.Find("pattern");
    if (type == "Metaspace") {
      const std::string scheme = TextOf(stage, "prepend_scheme");
      prefix = scheme.empty() ? FlagOf(stage, "add_prefix_space", true) : scheme != "never";
      escapes = true;
    } else if (!(type == "Split" && escapes && pattern && TextOf(*pattern, "String") == " ")) {
      // Gemma's Split finds no spaces, since they were replaced before.
      Refuse(source,
             "the tokenizer has pre_tokenizer " + Quoted(type) + " in a SentencePiece vocabulary");
    }
  }
  if (!escapes) Refuse(source, "the tokenizer does not replace spaces with U+2581");
  return prefix;
}

// Sets scores in the order of the merges. Readers merge any two tokens that spell a third, highest
// score first; refuses a vocabulary for which that gives other results.
void ScoreByMerges(const std::vector<std::pair<std::string, std::string>>& merges,
                   const std::string& source, GgufVocabulary& out) {
  std::unordered_map<std::string_view, size_t> id_of;
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    const Token& token = out.tokens[i];
    if (token.type == SentencePieceType::kNormal && !token.text.empty())
      id_of.emplace(token.text, i);
  }
  std::unordered_map<std::string, float> rank_of;
  std::set<std::pair<std::string_view, std::string_view>> pairs;
  float next = 0, last = 0;
  for (const auto& [left, right] : merges) {
    const auto [entry, is_new] = rank_of.emplace(left + right, next);
    if (is_new) next += 1;
    if (entry->second < last) {
      std::string both = left;
      both.append(" ").append(right);
      Refuse(source,
             "the tokenizer merges " + Quoted(both) + " in an order that scores cannot express");
    }
    last = entry->second;
    pairs.emplace(left, right);
  }
  for (auto& [text, id] : id_of) {
    const auto rank = rank_of.find(std::string(text));
    out.tokens[id].score = rank == rank_of.end() ? -next : -rank->second;
    for (size_t cut = 1; cut < text.size(); ++cut) {
      if ((static_cast<unsigned char>(text[cut]) & 0xc0) == 0x80) continue;  // inside a character
      const std::string_view left = text.substr(0, cut), right = text.substr(cut);
      if (!id_of.contains(left) || !id_of.contains(right) || pairs.contains({left, right}))
        continue;
      Refuse(source, "the tokens " + Quoted(left) + " and " + Quoted(right) + " never merge into " +
                         Quoted(text));
    }
  }
}

bool IsByteToken(std::string_view text) {
  const auto is_hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F'); };
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') && is_hex(text[3]) &&
         is_hex(text[4]);
}

GgufVocabulary ReadPieceBpe(const JsonValue& root, const JsonValue& model,
                            const std::string& source) {
  if (FlagOf(model, "ignore_merges"))
    Refuse(source, "the tokenizer has SentencePiece tokens with ignore_merges");
  if (!FlagOf(model, "byte_fallback"))
    Refuse(source, "the tokenizer has SentencePiece tokens without byte_fallback");
  GgufVocabulary out;
  out.model = engine::kGgufSentencePiece;
  out.add_space_prefix = ReadsSpacePrefix(root, source);
  if (const auto vocab = model.Find("vocab")) ReadVocab(*vocab, source, out);
  const std::string unknown = TextOf(model, "unk_token");
  for (Token& token : out.tokens) {
    if (IsByteToken(token.text)) token.type = SentencePieceType::kByte;
    if (!unknown.empty() && token.text == unknown) token.type = SentencePieceType::kUnknown;
  }
  ReadAdded(root, /*spaces=*/true, source, out);
  ScoreByMerges(ReadMerges(model), source, out);
  return out;
}

GgufVocabulary ReadTokenizerJson(const std::string& text, const std::string& source) {
  const JsonDocument document = JsonDocument::Parse(text, source);
  const JsonValue root = document.root();
  const auto model = root.Find("model");
  const std::string type = model ? TextOf(*model, "type") : "";
  if (!model || !model->Find("merges") || (!type.empty() && type != "BPE")) {
    Refuse(source, "the tokenizer has model type " + Quoted(type));
  }
  const Cuts cuts = ReadCuts(root);
  return cuts.byte_level ? ReadByteLevel(root, *model, cuts, source)
                         : ReadPieceBpe(root, *model, source);
}

GgufVocabulary ReadTokenizerModel(const std::string& text, const std::string& source,
                                  const std::optional<std::string>& config) {
  const engine::SentencePieceList list = engine::ListSentencePieces(text, source);
  if (!list.is_bpe) Refuse(source, "the tokenizer has a Unigram vocabulary");
  GgufVocabulary out;
  out.model = engine::kGgufSentencePiece;
  out.add_space_prefix = list.add_dummy_prefix;
  out.remove_extra_whitespaces = list.remove_extra_whitespaces;
  out.charsmap = list.charsmap;
  if (!out.charsmap.empty() || out.remove_extra_whitespaces) {
    out.warnings.emplace_back(
        "the tokenizer normalises text before it looks for tokens; other GGUF readers may not");
  }
  for (const auto& piece : list.pieces) {
    std::string spelled(piece.text);
    if (piece.type == SentencePieceType::kUserDefined) spelled = WithSpaces(std::move(spelled));
    out.tokens.push_back({std::move(spelled), piece.score, piece.type});
  }
  if (config && JsonDocument::Parse(*config, source).root().Find("added_tokens_decoder")) {
    // The loader of tokenizer.model ignores them too; adding them would shift ids.
    out.warnings.emplace_back("tokens that occur only in tokenizer_config.json are left out");
  }
  return out;
}

// Reads vocab.json and merges.txt; the tokenizer's class decides the pattern that splits text.
GgufVocabulary ReadTwoFiles(const std::string& vocab, const std::string& merges,
                            const std::optional<std::string>& config, const std::string& source) {
  std::string name;
  if (config) name = TextOf(JsonDocument::Parse(*config, source).root(), "tokenizer_class");
  const engine::TwoFileClass* tokenizer_class = engine::FindTwoFileClass(name);
  if (tokenizer_class == nullptr) Refuse(source, "tokenizer_class " + Quoted(name));
  GgufVocabulary out;
  out.model = engine::kGgufByteLevelBpe;
  out.pre = FindPre({std::string(tokenizer_class->pattern)}, tokenizer_class->nfc,
                    /*ignore_merges=*/false, source);
  ReadVocab(JsonDocument::Parse(vocab, source + "/vocab.json").root(), source, out);
  for (size_t at = 0; at < merges.size();) {
    const size_t end = std::min(merges.find('\n', at), merges.size());
    std::string line = merges.substr(at, end - at);
    at = end + 1;
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with("#version")) out.merges.push_back(std::move(line));
  }
  return out;
}

}  // namespace

Token& GgufVocabulary::At(int64_t id, const std::string& source) {
  if (id < 0 || id >= kMostTokens) {
    throw Error(ErrorCode::kDataLoss, source +
                                          ": a token has an id that is negative or not below " +
                                          std::to_string(kMostTokens));
  }
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  return tokens[static_cast<size_t>(id)];
}

std::optional<GgufVocabulary> ReadGgufVocabulary(const std::string& source,
                                                 const ReadTextFunction& read) {
  if (const auto text = read("tokenizer.json")) {
    return ReadTokenizerJson(*text, source + "/tokenizer.json");
  }
  const auto config = read("tokenizer_config.json");
  if (const auto text = read("tokenizer.model"); text && !engine::LooksLikeTiktoken(*text)) {
    return ReadTokenizerModel(*text, source + "/tokenizer.model", config);
  }
  for (const char* name :
       {"tokenizer.model", "qwen.tiktoken", "tokenizer.tiktoken", "tiktoken.model"}) {
    if (read(name))
      Refuse(source, std::string("the tokenizer has tiktoken ranks (") + name + ") without merges");
  }
  const auto vocab = read("vocab.json"), merges = read("merges.txt");
  if (vocab && merges) return ReadTwoFiles(*vocab, *merges, config, source);
  return std::nullopt;
}

}  // namespace tandem::convert
