#include "engine/tokenizer/readers/tiktoken.h"

#include <algorithm>
#include <charconv>

#include "engine/base/quoted.h"
#include "engine/tokenizer/files/base64.h"
#include "engine/tokenizer/files/file_errors.h"
#include "engine/tokenizer/models/bpe.h"
#include "engine/tokenizer/pipeline_tokenizer.h"

namespace tandem::engine {
namespace {

constexpr size_t kMostFileBytes = 64 << 20;

struct Ranked {
  std::string bytes;
  TokenId rank;
};

Ranked ReadLine(std::string_view line, const std::string& file, const std::string& where) {
  const size_t space = line.find(' ');
  if (space == std::string_view::npos) {
    ThrowBroken(file, where, "must be a token in base64 and its rank");
  }
  const std::string_view digits = line.substr(space + 1);
  Ranked read{{}, -1};
  const auto [end, fault] =
      std::from_chars(digits.data(), digits.data() + digits.size(), read.rank);
  if (fault != std::errc() || end != digits.data() + digits.size() || read.rank < 0 ||
      read.rank >= Vocabulary::kMostTokens) {
    ThrowBroken(file, where,
                "has the rank " + Quoted(digits) + "; a rank must be an integer in [0, " +
                    std::to_string(Vocabulary::kMostTokens) + ")");
  }
  const auto bytes = DecodeBase64(line.substr(0, space));
  if (!bytes || bytes->empty()) ThrowBroken(file, where, "has a token that is not base64");
  if (bytes->size() > kLongestRanked) {
    ThrowBroken(file, where,
                "has a token of " + std::to_string(bytes->size()) +
                    " bytes, more than the limit of " + std::to_string(kLongestRanked));
  }
  read.bytes = *bytes;
  return read;
}

std::vector<Ranked> ReadLines(std::string_view text, const std::string& file) {
  if (text.size() > kMostFileBytes) {
    ThrowBroken(file, "the file",
                "must be at most " + std::to_string(kMostFileBytes) + " bytes, got " +
                    std::to_string(text.size()));
  }
  std::vector<Ranked> tokens;
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    tokens.push_back(ReadLine(line, file, "line " + std::to_string(number)));
  }
  if (tokens.empty()) ThrowBroken(file, "the file", "is empty");
  return tokens;
}

Vocabulary ReadVocabulary(std::string_view text, const std::string& file) {
  const std::vector<Ranked> ranked = ReadLines(text, file);
  TokenId highest = 0;
  for (const Ranked& token : ranked) highest = std::max(highest, token.rank);
  if (highest >= static_cast<int64_t>(ranked.size()) + Vocabulary::kMostHoles) {
    ThrowBroken(file, "the rank " + std::to_string(highest),
                "is too high for " + std::to_string(ranked.size()) + " tokens");
  }
  Vocabulary vocabulary(file, /*byte_level=*/true, static_cast<size_t>(highest) + 1);
  for (const Ranked& token : ranked) {
    if (!vocabulary.Add(token.bytes, token.rank)) {
      ThrowBroken(file, "the rank " + std::to_string(token.rank), "or its token occurs twice");
    }
  }
  const std::array<TokenId, 256> bytes = vocabulary.ByteTokens();
  for (size_t b = 0; b < bytes.size(); ++b) {
    if (bytes[b] < 0) {
      ThrowBroken(file, "the byte " + std::to_string(b), "has no rank");
    }
  }
  return vocabulary;
}

std::vector<AddedToken> KnownTokens(TiktokenFamily family, TokenId first) {
  std::vector<AddedToken> tokens;
  const auto add = [&](std::string content, TokenId offset) {
    tokens.push_back({.content = std::move(content), .id = first + offset, .special = true});
  };
  switch (family) {
    case TiktokenFamily::kQwen:
      add("<|endoftext|>", 0);
      add("<|im_start|>", 1);
      add("<|im_end|>", 2);
      for (int i = 0; i < 205; ++i) add("<|extra_" + std::to_string(i) + "|>", 3 + i);
      break;
    case TiktokenFamily::kLlama3:
      // Names only the ids that every release of the family shares. The other 251 differ between
      // releases, so the configuration must name them.
      add("<|begin_of_text|>", 0);
      add("<|end_of_text|>", 1);
      add("<|start_header_id|>", 6);
      add("<|end_header_id|>", 7);
      add("<|eot_id|>", 9);
      break;
  }
  return tokens;
}

void AddControlTokens(TiktokenFamily family, const std::vector<AddedToken>& added,
                      Vocabulary& vocabulary) {
  for (const AddedToken& token : added) {
    vocabulary.AddAddedToken(token, "tokenizer_config.json added_tokens_decoder");
  }
  for (AddedToken& token : KnownTokens(family, vocabulary.tokens().id_limit())) {
    const bool told = std::any_of(added.begin(), added.end(), [&](const AddedToken& other) {
      return other.id == token.id || other.content == token.content;
    });
    if (!told) vocabulary.AddAddedToken(std::move(token), "a control token");
  }
}

}  // namespace

bool LooksLikeTiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 2048));
  const size_t space = line.find(' ');
  return space != std::string_view::npos && space > 0 &&
         DecodeBase64(line.substr(0, space)).has_value();
}

std::unique_ptr<Tokenizer> LoadTiktoken(std::string_view text, const std::string& file,
                                        TiktokenFamily family,
                                        const std::vector<AddedToken>& added) {
  Vocabulary vocabulary = ReadVocabulary(text, file);
  AddControlTokens(family, added, vocabulary);
  std::vector<std::pair<TokenId, uint32_t>> ranked;
  for (TokenId id = 0; id < vocabulary.tokens().id_limit(); ++id) {
    if (vocabulary.tokens().Has(id)) ranked.emplace_back(id, static_cast<uint32_t>(id));
  }
  PairTable merges = MergesByRank(vocabulary.tokens(), ranked);

  TokenizerParts parts;
  parts.Take(vocabulary);
  const bool qwen = family == TiktokenFamily::kQwen;
  if (qwen) parts.normalizer = Normalizer({UnicodeStep(NormalForm::kNfc)});
  parts.pretokenizer = Pretokenizer({PatternSplit{
      Pattern::Compile(qwen ? kQwenPattern : kLlama3Pattern, file), SplitBehavior::kIsolated}});
  TokenTable tokens = vocabulary.tokens();
  parts.model = std::make_unique<BpeModel>(BpeOptions{.byte_level = true, .ignore_merges = true},
                                           std::move(tokens), std::move(merges),
                                           vocabulary.ByteTokens(), vocabulary.control_ids());
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace tandem::engine
