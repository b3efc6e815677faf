// Numbers for which a schema sets no bound end, however much the model likes digits.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/constrain/json_schema.h"
#include "tests/engine/constrain/constrain_test_support.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kNumberBytes = "0123456789+-.eE";

bool IsOfNumber(char c) { return kNumberBytes.find(c) != std::string_view::npos; }

// All bytes, and tokens with which numbers grow by many characters at once.
Vocabulary DigitVocabulary() {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  for (const char* more :
       {"12", "000", "1234567890", "e+", "e-12", ".5", ".000", "-1", "],[", ",1"}) {
    tokens.emplace_back(more);
  }
  tokens.push_back(std::string(31, '0'));
  tokens.push_back(std::string(80, '7'));
  tokens.push_back("," + std::string(60, '1'));
  tokens.push_back(std::string(64, '-'));
  return Vocabulary(std::move(tokens));
}

// Draws tokens that lengthen numbers wherever some are allowed, except for one draw in fifty.
// Returns nullopt if the text is not complete after 600 tokens.
std::optional<std::string> DigitsWherePossible(const Vocabulary& vocabulary, const Grammar& grammar,
                                               std::mt19937& random) {
  GrammarMatcher matcher = grammar.NewMatcher();
  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  std::string text;
  for (int i = 0; i < 600; ++i) {
    if (!matcher.Mask(mask)) return text;
    std::vector<TokenId> allowed, digits;
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
      if (!IsAllowed(mask, id)) continue;
      allowed.push_back(id);
      const std::string& token = vocabulary.tokens[static_cast<size_t>(id)];
      if (std::all_of(token.begin(), token.end(), IsOfNumber)) digits.push_back(id);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow " << text;
      return std::nullopt;
    }
    const bool grows = !digits.empty() && random() % 50 != 0;
    const std::vector<TokenId>& from = grows ? digits : allowed;
    // A random walk seldom ends a string.
    const bool ends = !grows && IsAllowed(mask, '"');
    const TokenId token = ends ? '"' : from[random() % from.size()];
    if (token != vocabulary.end) text += vocabulary.tokens[static_cast<size_t>(token)];
    if (matcher.Commit(token)) return text;
  }
  return std::nullopt;
}

// The lengths of all numbers outside strings.
std::vector<size_t> NumberLengths(const std::string& text) {
  std::vector<size_t> lengths;
  bool in_string = false;
  size_t run = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string) {
      if (text[i] == '\\') ++i;
      in_string = text[i] != '"';
      continue;
    }
    in_string = text[i] == '"';
    if (IsOfNumber(text[i])) {
      ++run;
    } else if (run > 0) {
      lengths.push_back(run);
      run = 0;
    }
  }
  if (run > 0) lengths.push_back(run);
  return lengths;
}

size_t LongestNumber(const char* schema, int n_walks, uint32_t seed) {
  const Vocabulary vocabulary = DigitVocabulary();
  const auto grammar = vocabulary.compiler->Compile(SchemaGrammar(Json::parse(schema), "s"));
  std::mt19937 random(seed);
  size_t longest = 0;
  for (int i = 0; i < n_walks; ++i) {
    const auto text = DigitsWherePossible(vocabulary, *grammar, random);
    if (!text) continue;
    for (const size_t length : NumberLengths(*text)) longest = std::max(longest, length);
  }
  return longest;
}

TEST(NumberGuard, NumbersWithoutBoundsHaveAtMost32Characters) {
  TANDEM_NEED_LLGUIDANCE();
  for (const char* schema :
       {R"({"type": "number"})", R"({"type": ["number", "null"]})", "{}", R"({"type": "array"})",
        R"({"type": "array", "items": {"type": "number"}, "maxItems": 4})",
        R"({"type": "object", "properties": {"a": {}, "b": {"type": "number"}},
            "required": ["a", "b"], "additionalProperties": false})",
        R"({"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 3}]})",
        R"({"type": "number", "minimum": 1})", R"({"type": "number", "maximum": -3.5})",
        R"({"type": "number", "minimum": -2, "maximum": 2})"}) {
    SCOPED_TRACE(schema);
    const size_t longest = LongestNumber(schema, 60, 18);
    EXPECT_LE(longest, 32u);
    EXPECT_GE(longest, 26u);  // the walks reach the bound
  }
}

TEST(NumberGuard, IntegersWithoutBoundsHaveAtMost19Digits) {
  TANDEM_NEED_LLGUIDANCE();
  for (const char* schema :
       {R"({"type": "integer"})", R"({"type": ["null", "integer"]})",
        R"({"type": "integer", "minimum": 5})",
        R"({"type": "array", "items": {"type": "integer"}})",
        R"({"type": "object", "additionalProperties": {"type": ["integer", "boolean"]}})"}) {
    SCOPED_TRACE(schema);
    const size_t longest = LongestNumber(schema, 60, 19);
    EXPECT_LE(longest, 20u);  // with the sign
    EXPECT_GE(longest, 12u);
  }
}

TEST(NumberGuard, NumbersAreFiniteAsDoubles) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = DigitVocabulary();
  for (const char* schema : {R"({"type": "array", "items": {"type": "number"}})", "{}"}) {
    const auto grammar = vocabulary.compiler->Compile(SchemaGrammar(Json::parse(schema), "s"));
    std::mt19937 random(3);
    int n_exponents = 0;
    for (int i = 0; i < 100; ++i) {
      const auto text = DigitsWherePossible(vocabulary, *grammar, random);
      if (!text) continue;
      n_exponents += text->find("e") != std::string::npos;
      EXPECT_TRUE(Json::accept(*text)) << *text;  // refuses a number that is too large for a double
    }
    EXPECT_GT(n_exponents, 10);
  }
}

TEST(NumberGuard, DigitsInStringsAndNumbersOfTheSchemaAreNotBounded) {
  TANDEM_NEED_LLGUIDANCE();
  const std::string digits(50, '7');
  const Vocabulary vocabulary = DigitVocabulary();
  const auto accepts = [&](const Json& schema, const std::string& text) {
    GrammarMatcher matcher = vocabulary.compiler->Compile(SchemaGrammar(schema, "s"))->NewMatcher();
    std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
    for (const char c : text) {
      const auto token = static_cast<TokenId>(static_cast<unsigned char>(c));
      if (!matcher.Mask(mask) || !IsAllowed(mask, token)) return false;
      matcher.Commit(token);
    }
    return matcher.IsComplete();
  };

  EXPECT_TRUE(accepts(Json::object(), "\"" + digits + "\""));
  EXPECT_TRUE(accepts(Json::object(), "[\"\\\"" + digits + "\"]"));
  EXPECT_FALSE(accepts(Json::object(), digits));
  // Only a number of more than 32 characters lies between these bounds and has that many zeros.
  EXPECT_TRUE(accepts(Json::parse(R"({"type": "number", "minimum": 1e-42, "maximum": 1e-40})"),
                      "0." + std::string(41, '0') + "1"));
}

TEST(NumberGuard, RollingBackRestoresTheLengthOfTheNumber) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = DigitVocabulary();
  GrammarMatcher matcher =
      vocabulary.compiler->Compile(SchemaGrammar(Json::parse(R"({"type": "number"})"), "s"))
          ->NewMatcher();
  std::vector<uint32_t> before(MaskWords(vocabulary.size()));
  std::vector<uint32_t> after(before);
  for (int i = 0; i < 29; ++i) matcher.Commit('1');
  ASSERT_TRUE(matcher.Mask(before));
  ASSERT_TRUE(IsAllowed(before, '1'));
  matcher.Commit('1');
  ASSERT_TRUE(matcher.Mask(after));
  EXPECT_FALSE(IsAllowed(after, '1'));
  EXPECT_TRUE(IsAllowed(after, vocabulary.end));

  matcher.Rollback(1);
  ASSERT_TRUE(matcher.Mask(after));
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace tandem::engine
