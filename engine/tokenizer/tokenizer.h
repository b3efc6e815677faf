#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/ids.h"
#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/text/text_ranges.h"

namespace tandem::engine {

// How Encode treats control tokens spelled in the text: special tokens, and markup like <tool_call>
// (AddedToken::is_control). kParseSpecial turns them into tokens; kPlainText keeps them text.
// Client text always uses kPlainText, training delimiters use kParseSpecial.
enum class SpecialTokens { kPlainText, kParseSpecial };

// Text <-> token ids. Immutable after load; every method is const and safe from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Encodes a text in which clients wrote the ranges `client`, such as a rendered chat. A control
  // token matches only where no byte of its spelling is a client's. All text between two control
  // tokens is split and merged as one, across the ends of those ranges. Invalid UTF-8 is encoded
  // byte by byte. Linear in the size of the text. Appends no BOS or EOS.
  virtual std::vector<TokenId> EncodeMixed(std::string_view text,
                                           std::span<const TextRange> client) const = 0;
  // Encodes a text of one origin: kPlainText for a client's, kParseSpecial for all others.
  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const {
    const TextRange all(0, text.size());
    const bool plain = special == SpecialTokens::kPlainText && !text.empty();
    return EncodeMixed(text, std::span(&all, plain ? 1 : 0));
  }

  virtual int64_t vocab_size() const = 0;
  // Bytes that a token adds to the text between other tokens; they may be part of a UTF-8
  // character. A control token yields its spelling. An id without a token (a hole, or out of range)
  // yields an empty view.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  // Finds a token by its bytes in the text, or by its spelling in the file ("Ġthe").
  virtual std::optional<TokenId> FindToken(std::string_view spelling) const = 0;
  // Whether the tokenizer adds a space before text, which decoding must remove.
  virtual bool adds_leading_space() const { return false; }

  // Decoding beyond joining TokenBytes; null when there is none. Lives as long as the tokenizer.
  virtual const Decoder* decoder() const { return nullptr; }
  // TokenBytes at a given place, for decoders that depend on places. nullopt: no token.
  virtual std::optional<std::string> TextAt(TokenId id, TokenPlace) const {
    const std::string_view bytes = TokenBytes(id);
    return bytes.empty() ? std::nullopt : std::optional<std::string>(bytes);
  }
};

// A tokenizer with the related settings of its model directory.
struct TokenizerFiles {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // from tokenizer_config.json, if it names one
  std::optional<TokenId> eos;
  bool add_bos = false;  // for plain-string prompts (`add_bos_token`)
  // Tokens that the post-processor of tokenizer.json puts around every text. Without a suffix
  // there, `add_eos_token` of tokenizer_config.json makes it EOS.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  std::optional<std::string> chat_template;  // tokenizer_config.json or chat_template.jinja
  // Tokens of infilling: `prefix_token`, `suffix_token` and `middle_token` of
  // tokenizer_config.json, if the vocabulary has all of them.
  struct Infill {
    TokenId prefix, suffix, middle;
  };
  std::optional<Infill> infill;
};

// Loads from the texts of a model directory's files; absent files are nullopt. Reads
// `tokenizer.json`, else `tokenizer.model` (SentencePiece or tiktoken ranks), else a `.tiktoken`
// file, else `vocab.json` + `merges.txt`. Returns nullopt without any of these. `source` is for
// messages. Throws kUnsupported naming the unsupported part, and kDataLoss for a broken file.
struct TokenizerTexts {
  std::string source;
  // Name of a file in messages. Empty: its name in the directory `source`.
  std::function<std::string(std::string_view file_name)> describe = {};
  std::optional<std::string> tokenizer_json = {};
  std::optional<std::string> vocab_json = {};
  std::optional<std::string> merges_txt = {};
  std::optional<std::string> tokenizer_config_json = {};
  std::optional<std::string> chat_template_jinja = {};
  std::optional<std::string> tokenizer_model = {};
  std::optional<std::string> tiktoken = {};
  // Needed for tiktoken files, which do not name their pattern. Only `model_type` is read.
  std::optional<std::string> config_json = {};
};
std::optional<TokenizerFiles> LoadTokenizer(const TokenizerTexts& texts);

// Loads from a directory, or from a source that presents itself as one. `read` returns the text of
// a file, or nullopt when it does not exist.
std::optional<TokenizerFiles> LoadTokenizer(
    const std::string& source,
    const std::function<std::optional<std::string>(std::string_view file_name)>& read,
    const std::function<std::string(std::string_view file_name)>& describe = {});

// Decodes ids. Invalid UTF-8 becomes U+FFFD, one per maximal invalid part.
std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special);

}  // namespace tandem::engine
