#include <algorithm>
#include <unordered_set>

#include "engine/base/log.h"
#include "engine/base/quoted.h"
#include "engine/tokenizer/models/bpe.h"
#include "engine/tokenizer/models/unigram.h"
#include "engine/tokenizer/models/word_models.h"
#include "engine/tokenizer/readers/json_components.h"

namespace tandem::engine {
namespace {

// A trie takes a few dozen bytes for each byte of its tokens.
constexpr size_t kMostTrieBytes = 16 << 20;

void ReadAddedTokens(const Field& root, Vocabulary& vocabulary) {
  const auto field = root.Find("added_tokens");
  if (!field) return;
  std::unordered_set<std::string_view> seen;
  for (const Field& item : field->Items()) {
    const std::string_view content = item.At("content").String();
    const int64_t id = item.At("id").Int();
    if (id < 0 || id > INT32_MAX) item.At("id").Broken("must be an id, got " + std::to_string(id));
    if (!seen.insert(content).second) item.Broken("repeats " + Quoted(content));
    vocabulary.AddAddedToken({.content = std::string(content),
                              .id = static_cast<TokenId>(id),
                              .special = item.BoolOr("special", false),
                              .single_word = item.BoolOr("single_word", false),
                              .lstrip = item.BoolOr("lstrip", false),
                              .rstrip = item.BoolOr("rstrip", false),
                              .normalized = item.BoolOr("normalized", false)},
                             item.path());
  }
}

Vocabulary ReadVocab(const Field& model, bool byte_level) {
  return Vocabulary::FromObject(model.file(), byte_level, model.At("vocab").value(),
                                model.path() + ".vocab");
}

std::optional<TokenId> ReadUnk(const Field& model, const Vocabulary& vocabulary) {
  const auto unk = model.Find("unk_token");
  if (!unk) return std::nullopt;
  const auto id = vocabulary.Find(unk->String());
  if (!id) unk->Broken("is " + Quoted(unk->String()) + ", which is not in the vocabulary");
  return id;
}

// Encoding walks a trie byte by byte from every position of a text.
void CheckTrie(const Field& model, const TokenTable& tokens, size_t longest) {
  size_t bytes = 0;
  for (TokenId id = 0; id < tokens.id_limit(); ++id) bytes += tokens.String(id).size();
  if (tokens.longest() > longest || bytes > kMostTrieBytes) {
    model.At("vocab").Broken("must have tokens of at most " + std::to_string(longest) +
                             " bytes and " + std::to_string(kMostTrieBytes) +
                             " bytes in total, got " + std::to_string(tokens.longest()) + " and " +
                             std::to_string(bytes));
  }
}

void ReadMerges(const Field& field, MergeRules& merges) {
  // Creates no Field per item, because there may be hundreds of thousands.
  field.value().ForEachItem([&](size_t i, JsonValue item) {
    const std::string path = field.path() + "[" + std::to_string(i) + "]";
    if (const auto line = item.AsString()) {
      merges.Add(*line, path);
      return;
    }
    std::vector<std::string_view> pair;
    item.ForEachItem([&](size_t, JsonValue side) {
      if (const auto text = side.AsString(); text && pair.size() < 3) pair.push_back(*text);
    });
    if (item.size() != 2 || pair.size() != 2) {
      ThrowBroken(field.file(), path, "must be \"left right\" or [\"left\", \"right\"]");
    }
    merges.Add(pair[0], pair[1], path);
  });
}

std::string StringOr(const Field& field, const char* key, const char* fallback) {
  const auto member = field.Find(key);
  return std::string(member ? member->String() : fallback);
}

JsonModel ReadBpe(const Field& root, const Field& model, bool byte_level) {
  if (const auto dropout = model.Find("dropout"); dropout && dropout->Number() != 0) {
    dropout->Unsupported("is not supported: set it to null; dropout is only for training");
  }
  Vocabulary vocabulary = ReadVocab(model, byte_level);
  const Field rules = model.At("merges");
  if (!rules.value().IsArray()) rules.Broken("must be an array");
  BpeOptions options{.byte_level = byte_level,
                     .byte_fallback = model.BoolOr("byte_fallback", false),
                     .unk = ReadUnk(model, vocabulary),
                     .fuse_unk = model.BoolOr("fuse_unk", false),
                     .ignore_merges = model.BoolOr("ignore_merges", false),
                     .continuing_prefix = StringOr(model, "continuing_subword_prefix", ""),
                     .word_suffix = StringOr(model, "end_of_word_suffix", "")};
  MergeRules merges(vocabulary, rules.value().size(), options.continuing_prefix);
  ReadMerges(rules, merges);
  ReadAddedTokens(root, vocabulary);
  TokenTable tokens = vocabulary.tokens();
  auto bpe =
      std::make_unique<BpeModel>(std::move(options), std::move(tokens), std::move(merges).Take(),
                                 vocabulary.ByteTokens(), vocabulary.control_ids());
  // The tokenizers library drops such text too, without a word.
  if (bpe->may_drop_text()) {
    spdlog::warn(
        "tokenizer_drops_text file=\"{}\" reason=\"the vocabulary has no unknown token, and "
        "text with characters that it lacks loses them\"",
        model.file());
  }
  return {std::move(bpe), std::move(vocabulary)};
}

JsonModel ReadUnigram(const Field& root, const Field& model, bool) {
  constexpr double kUnknownPenalty = 10;
  const Field vocab = model.At("vocab");
  if (!vocab.value().IsArray()) vocab.Broken("must be an array of tokens and scores");
  const size_t count = vocab.value().size();
  if (count == 0) vocab.Broken("is empty");
  if (count >= static_cast<size_t>(Vocabulary::kMostTokens) - 1)
    vocab.Broken("must have fewer than " + std::to_string(Vocabulary::kMostTokens - 1) +
                 " entries, got " + std::to_string(count));
  Vocabulary vocabulary(model.file(), /*byte_level=*/false, count);
  std::vector<double> scores(count);
  vocab.value().ForEachItem([&](size_t i, JsonValue item) {
    std::optional<std::string_view> token;
    std::optional<double> score;
    item.ForEachItem([&](size_t at, JsonValue part) {
      if (at == 0) token = part.AsString();
      if (at == 1) score = part.AsNumber();
    });
    const auto where = [&] { return vocab.path() + "[" + std::to_string(i) + "]"; };
    if (item.size() != 2 || !token || !score) {
      ThrowBroken(vocab.file(), where(), "must be a token and its score");
    }
    scores[i] = *score;
    if (!vocabulary.Add(*token, static_cast<TokenId>(i))) {
      ThrowBroken(vocab.file(), where(), "repeats " + Quoted(*token));
    }
  });
  CheckTrie(model, vocabulary.tokens(), UnigramModel::kLongestPiece);
  UnigramOptions options{.byte_fallback = model.BoolOr("byte_fallback", false)};
  options.unk_score = *std::min_element(scores.begin(), scores.end()) - kUnknownPenalty;
  if (const auto unk = model.Find("unk_id")) {
    const size_t id = unk->Count();
    if (id >= count) unk->Broken("is " + std::to_string(id) + ", which is not in the vocabulary");
    options.unk = static_cast<TokenId>(id);
  }
  ReadAddedTokens(root, vocabulary);
  TokenTable tokens = vocabulary.tokens();
  return {std::make_unique<UnigramModel>(options, std::move(tokens), std::move(scores),
                                         vocabulary.ByteTokens(), vocabulary.control_ids()),
          std::move(vocabulary)};
}

JsonModel ReadWordPiece(const Field& root, const Field& model, bool) {
  Vocabulary vocabulary = ReadVocab(model, /*byte_level=*/false);
  CheckTrie(model, vocabulary.tokens(), WordPieceModel::kLongestPiece);
  const auto unk = ReadUnk(model, vocabulary);
  if (!unk) ThrowBroken(model.file(), model.path() + ".unk_token", "is missing");
  WordPieceOptions options{.unk = *unk};
  options.continuing_prefix = StringOr(model, "continuing_subword_prefix", "##");
  if (const auto most = model.Find("max_input_chars_per_word")) {
    options.max_word_characters = most->Count();
  }
  ReadAddedTokens(root, vocabulary);
  TokenTable tokens = vocabulary.tokens();
  return {std::make_unique<WordPieceModel>(std::move(options), std::move(tokens),
                                           vocabulary.control_ids()),
          std::move(vocabulary)};
}

JsonModel ReadWordLevel(const Field& root, const Field& model, bool) {
  Vocabulary vocabulary = ReadVocab(model, /*byte_level=*/false);
  const auto unk = model.Find("unk_token");
  // The library always names an unknown token. When the vocabulary lacks it, there is none.
  const auto unk_id = unk ? vocabulary.Find(unk->String()) : std::nullopt;
  ReadAddedTokens(root, vocabulary);
  TokenTable tokens = vocabulary.tokens();
  return {std::make_unique<WordLevelModel>(unk_id, std::move(tokens), vocabulary.control_ids()),
          std::move(vocabulary)};
}

struct Model {
  std::string_view type;
  JsonModel (*read)(const Field& root, const Field& model, bool byte_level);
};
constexpr Model kModels[] = {
    {"BPE", ReadBpe},
    {"Unigram", ReadUnigram},
    {"WordPiece", ReadWordPiece},
    {"WordLevel", ReadWordLevel},
};

}  // namespace

bool MayWorkOnBytes(const Field& model) {
  const auto type = model.Find("type");
  return (!type || type->String() == "BPE") &&
         StringOr(model, "continuing_subword_prefix", "").empty() &&
         StringOr(model, "end_of_word_suffix", "").empty();
}

JsonModel ReadModel(const Field& root, bool byte_level) {
  const Field field = root.At("model");
  const auto type = field.Find("type");
  if (!type) return ReadBpe(root, field, byte_level);  // files older than the other models
  for (const Model& model : kModels) {
    if (model.type == type->String()) return model.read(root, field, byte_level);
  }
  field.UnsupportedType();
}

}  // namespace tandem::engine
