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
#include <utility>
#include <vector>

#include "engine/base/attempt.h"
#include "engine/constrain/grammar.h"
#include "engine/constrain/json_schema.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/listed_tokens.h"

namespace {

using namespace tandem::engine;
using Json = nlohmann::ordered_json;
using tandem::TokenId;

constexpr TokenId kEnd = 256;

// Every byte is a token; then the end token.
std::shared_ptr<const Tokenizer> Tokens() {
  std::vector<std::string> tokens = ByteTokens();
  tokens.emplace_back("<end>");
  return std::make_shared<ListedTokens>(std::move(tokens), std::set<TokenId>{kEnd});
}

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
  const GrammarCompiler compiler(Tokens(), {kEnd}, kEnd + 1);
  for (std::string line; std::getline(std::cin, line);) {
    const Json answer = Answer(compiler, Json::parse(line));
    std::cout << answer.dump(-1, ' ', true, Json::error_handler_t::replace) << "\n";
  }
  return 0;
}
