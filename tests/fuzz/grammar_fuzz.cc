// A grammar of a client: the first byte chooses JSON Schema, regular expression, Lark, texts or
// white space; the rest is its text. It is refused with one line, or compiles. Then a walk along
// the masks begins some texts, which the input chooses: every mask allows a token, every allowed
// token is taken, and a complete text of a schema is JSON.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/base/utf8.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "engine/io/json.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/listed_tokens.h"

namespace {

using namespace tandem::engine;
using tandem::Error;
using tandem::ErrorCode;
using tandem::TokenId;

constexpr TokenId kEnd = 256;
constexpr int kMaxSteps = 40;

void Require(bool truth) {
  if (!truth) std::abort();
}

// Every byte is a token; then the end token, then some longer ones.
std::shared_ptr<const Tokenizer> Tokens() {
  std::vector<std::string> tokens = ByteTokens();
  tokens.emplace_back("<end>");
  for (const char* more : {"{\"", "\":", "\",\"", "true", "null", "000", "1234567890", "ab"}) {
    tokens.emplace_back(more);
  }
  return std::make_shared<ListedTokens>(std::move(tokens), std::set<TokenId>{kEnd});
}

// Runs the reader of a stranger's grammar; returns false if it is refused.
template <class Action>
bool IsAccepted(Action&& action) {
  const std::optional<Error> refused = tandem::ErrorOf(std::forward<Action>(action));
  if (!refused) return true;
  const std::string what = refused->what();
  Require(refused->code() == ErrorCode::kInvalidArgument && !what.empty());
  return false;
}

std::optional<GrammarSource> SourceOf(unsigned kind, const std::string& text) {
  std::optional<GrammarSource> source;
  IsAccepted([&] {
    if (kind == 0) {
      const auto schema = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
      if (!schema.is_discarded()) source = SchemaGrammar(schema, "fuzz");
    } else if (kind == 1) {
      source = RegexGrammar(text, "fuzz");
    } else if (kind == 2) {
      source = LarkGrammar(text, "fuzz");
    } else if (kind == 3) {
      const std::vector<std::string> texts = {"ab", text};
      source = ChoiceGrammar(texts, "fuzz");
    } else {
      source = JsonObjectGrammar({.pattern = CheckedSpacing(text, "fuzz")});
    }
  });
  return source;
}

// A grammar that turns out too large ends its text with an error.
void Walk(const Grammar& grammar, const Tokenizer& tokens, bool is_json, std::string_view choices) {
  GrammarMatcher matcher = grammar.NewMatcher();
  std::vector<uint32_t> mask(MaskWords(tokens.vocab_size()));
  std::string text;
  bool is_complete = false;
  IsAccepted([&] {
    for (int i = 0; i < kMaxSteps && !is_complete; ++i) {
      is_complete = !matcher.Mask(mask);
      if (is_complete) break;
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < tokens.vocab_size(); ++id) {
        if (IsAllowed(mask, id)) allowed.push_back(id);
      }
      Require(!allowed.empty());
      const auto choice =
          static_cast<unsigned char>(choices[static_cast<size_t>(i) % choices.size()]);
      const TokenId token = allowed[choice % allowed.size()];
      if (token != kEnd) text += tokens.TokenBytes(token);
      is_complete = matcher.Commit(token);
    }
  });
  if (is_complete && is_json) Require(nlohmann::json::accept(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2 || LlguidanceVersion().empty()) return 0;
  static const auto tokens = Tokens();
  static const GrammarCompiler compiler(tokens, {kEnd}, tokens->vocab_size());
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  if (!tandem::IsValidUtf8(text)) return 0;  // the parser of requests refuses it
  const unsigned kind = data[0] % 5;
  const std::optional<GrammarSource> source = SourceOf(kind, text);
  if (!source) return 0;
  std::shared_ptr<const Grammar> grammar;
  if (!IsAccepted([&] { grammar = compiler.Compile(*source); })) return 0;
  Walk(*grammar, *tokens, kind == 0 || kind == 4, text);
  return 0;
}
