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

// How Encode reads control tokens that the text spells: special tokens, and markup like <tool_call>
// (AddedToken::is_control). kParseSpecial turns them into tokens, kPlainText keeps them text. Text
// written by a client is always kPlainText; training delimiters use kParseSpecial.
enum class SpecialTokens { kPlainText, kParseSpecial };

// Text <-> token ids. Immutable after load; every method is const and safe from any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The ids of a text in which clients wrote the ranges `client`, such as a rendered chat. A
  // control token is found only where no byte of its spelling is a client's. All text between two
  // control tokens is cut and merged as one, across the ends of those ranges. Invalid UTF-8 is
  // accepted: its bytes are encoded as bytes. Linear in the size of the text. Appends no BOS or
  // EOS.
  virtual std::vector<TokenId> EncodeMixed(std::string_view text,
                                           std::span<const TextRange> client) const = 0;
  // Encodes a text of one origin: kPlainText for a client's, kParseSpecial for anyone else's.
  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const {
    const TextRange all(0, text.size());
    const bool plain = special == SpecialTokens::kPlainText && !text.empty();
    return EncodeMixed(text, std::span(&all, plain ? 1 : 0));
  }

  virtual int64_t vocab_size() const = 0;
  // The bytes a token adds to the text, between others: possibly part of a UTF-8 character. Control
  // tokens give their spelling. An id without a token (a hole, or out of range) gives an empty
  // view.
  virtual std::string_view TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;
  // A token by the bytes it adds to the text, or by its spelling in the file ("Ġthe").
  virtual std::optional<TokenId> FindToken(std::string_view spelling) const = 0;
  // True when text pieces begin with a space that the tokenizer added and decoding must remove.
  virtual bool adds_leading_space() const { return false; }

  // What decoding does beyond joining TokenBytes, if it does; lives as long as the tokenizer.
  virtual const Decoder* decoder() const { return nullptr; }
  // TokenBytes at some other place of a text, for decoders that look at places. nullopt: no token.
  virtual std::optional<std::string> TextAt(TokenId id, TokenPlace) const {
    const std::string_view bytes = TokenBytes(id);
    return bytes.empty() ? std::nullopt : std::optional<std::string>(bytes);
  }
};

// What surrounds a tokenizer in a model directory.
struct TokenizerFiles {
  std::unique_ptr<Tokenizer> tokenizer;
  std::optional<TokenId> bos;  // from tokenizer_config.json, if it names one
  std::optional<TokenId> eos;
  bool add_bos = false;  // for plain-string prompts (`add_bos_token`)
  // What the post-processor of tokenizer.json puts around every text.
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
  std::optional<std::string> chat_template;  // tokenizer_config.json or chat_template.jinja
};

// Loads from the texts of a model directory's files; absent files are nullopt. Reads
// `tokenizer.json`, else `tokenizer.model` (SentencePiece, or ranks as tiktoken writes them), else
// a `.tiktoken` file, else `vocab.json` + `merges.txt`. Returns nullopt when there is no tokenizer
// at all. `source` is used in messages. Throws kUnsupported naming the part that is not supported,
// kDataLoss for a broken file.
struct TokenizerTexts {
  std::string source;
  // How messages call a file; where it is empty, as one in the directory `source`.
  std::function<std::string(std::string_view file_name)> describe = {};
  std::optional<std::string> tokenizer_json = {};
  std::optional<std::string> vocab_json = {};
  std::optional<std::string> merges_txt = {};
  std::optional<std::string> tokenizer_config_json = {};
  std::optional<std::string> chat_template_jinja = {};
  std::optional<std::string> tokenizer_model = {};
  std::optional<std::string> tiktoken = {};
  // For tiktoken files, which do not say their pattern: `model_type` is read, nothing else.
  std::optional<std::string> config_json = {};
};
std::optional<TokenizerFiles> LoadTokenizer(const TokenizerTexts& texts);

// The same of a directory, or of what tells itself as one: `read` gives the text of a file, or
// nullopt where there is none.
std::optional<TokenizerFiles> LoadTokenizer(
    const std::string& source,
    const std::function<std::optional<std::string>(std::string_view file_name)>& read,
    const std::function<std::string(std::string_view file_name)>& describe = {});

// The text of ids, invalid UTF-8 replaced by U+FFFD (one per maximal invalid part).
std::string Decode(const Tokenizer& tokenizer, std::span<const TokenId> ids, bool skip_special);

}  // namespace tandem::engine
