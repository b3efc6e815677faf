// Says which texts a schema's grammar holds, for tests/json_schema/suite.py: one JSON object per
// line of standard input and output. Not part of the program.
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/tokenizer/tokenizer.h"

namespace {

using namespace tandem::engine;
using Json = nlohmann::ordered_json;
using tandem::TokenId;

constexpr TokenId kEnd = 256;

// Every byte is a token; then the end token.
class Bytes : public Tokenizer {
 public:
  Bytes() {
    for (int byte = 0; byte < 256; ++byte) tokens_.emplace_back(1, static_cast<char>(byte));
    tokens_.emplace_back("<end>");
  }
  std::vector<TokenId> EncodeMixed(std::string_view, std::span<const TextRange>) const override {
    return {};
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(tokens_.size()); }
  std::string_view TokenBytes(TokenId id) const override {
    return tokens_[static_cast<size_t>(id)];
  }
  bool IsSpecial(TokenId id) const override { return id == kEnd; }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }

 private:
  std::vector<std::string> tokens_;
};

bool Holds(const Grammar& grammar, const std::string& text) {
  GrammarMatcher matcher = grammar.NewMatcher();
  bool is_complete = false;
  const auto refused = tandem::ErrorOf([&] {
    for (const char c : text) matcher.Commit(static_cast<unsigned char>(c));
    is_complete = matcher.IsComplete();
  });
  return !refused && is_complete;
}

Json Answer(const GrammarCompiler& compiler, const Json& line) {
  std::shared_ptr<const Grammar> grammar;
  const auto refused = tandem::ErrorOf(
      [&] { grammar = compiler.Compile(SchemaGrammar(line.at("schema"), "schema")); });
  if (refused) return {{"refused", refused->what()}};
  Json held = Json::array();
  for (const Json& text : line.at("texts")) held.push_back(Holds(*grammar, text));
  return {{"held", std::move(held)}};
}

}  // namespace

int main() {
  std::ios::sync_with_stdio(false);
  if (LlguidanceVersion().empty()) {
    std::cout << R"({"absent": true})" << std::endl;
    return 0;
  }
  const GrammarCompiler compiler(std::make_shared<Bytes>(), {kEnd}, kEnd + 1);
  for (std::string line; std::getline(std::cin, line);) {
    const Json answer = Answer(compiler, Json::parse(line));
    std::cout << answer.dump(-1, ' ', true, Json::error_handler_t::replace) << "\n";
  }
  return 0;
}
