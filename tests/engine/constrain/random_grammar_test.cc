// Random regular expressions against PCRE2, and random Lark grammars against their languages
// written out: every text of a small alphabet up to a length.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <gtest/gtest.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "engine/constrain/text_grammars.h"
#include "tests/engine/constrain/constrain_test_support.h"

namespace tandem::engine {
namespace {

constexpr size_t kMaxTextLength = 5;

struct FreePattern {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

// PCRE2's own verdict on whole texts.
class FullMatch {
 public:
  explicit FullMatch(const std::string& regex) {
    const std::string anchored = "\\A(?:" + regex + ")\\z";
    int error = 0;
    size_t offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(anchored.data()), anchored.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
    if (code_) data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }
  bool is_valid() const { return code_ != nullptr; }
  bool Matches(const std::string& text) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                       data_.get(), nullptr) > 0;
  }

 private:
  std::unique_ptr<pcre2_code, FreePattern> code_;
  std::unique_ptr<pcre2_match_data, FreePattern> data_;
};

std::string RandomRegex(std::mt19937& random, int depth) {
  const auto inner = [&] { return RandomRegex(random, depth - 1); };
  if (depth == 0 || random() % 4 == 0) {
    constexpr std::array<const char*, 8> kAtoms = {"a",    "b", "c",     "[ab]",
                                                   "[^b]", ".", "[b-c]", "ab"};
    return kAtoms[random() % kAtoms.size()];
  }
  switch (random() % 6) {
    case 0:
      return "(" + inner() + "|" + inner() + ")";
    case 1:
      return "(?:" + inner() + "|" + inner() + "|" + inner() + ")";
    case 2: {
      constexpr std::array<const char*, 8> kCounts = {"?",     "*",     "+",    "{2}",
                                                      "{1,3}", "{0,2}", "{2,}", "*?"};
      return "(" + inner() + ")" + kCounts[random() % kCounts.size()];
    }
    default:
      return inner() + inner();
  }
}

// Compares the verdicts on `text` and on everything that it begins. A matcher that refused a token
// is null: then no text with this beginning may be in the language.
void CompareAll(const std::string& alphabet,
                const std::function<bool(const std::string&)>& contains, GrammarMatcher* matcher,
                const std::string& text) {
  ASSERT_EQ(matcher != nullptr && matcher->IsComplete(), contains(text)) << '"' << text << '"';
  if (text.size() == kMaxTextLength) return;
  std::vector<uint32_t> mask(1);
  const bool goes_on = matcher != nullptr && matcher->Mask(mask);
  for (size_t i = 0; i < alphabet.size(); ++i) {
    const auto token = static_cast<TokenId>(i);
    const bool is_allowed = goes_on && IsAllowed(mask, token);
    if (is_allowed) matcher->Commit(token);
    CompareAll(alphabet, contains, is_allowed ? matcher : nullptr, text + alphabet[i]);
    if (testing::Test::HasFatalFailure()) return;
    if (is_allowed) matcher->Rollback(1);
  }
}

TEST(RandomGrammars, RegexesHoldTheTextsThatPcre2MatchesInFull) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b", "c"});
  std::mt19937 random(20261123);
  for (int i = 0; i < 300; ++i) {
    const std::string regex = RandomRegex(random, 4);
    SCOPED_TRACE(regex);
    const FullMatch pcre2(regex);
    ASSERT_TRUE(pcre2.is_valid());
    GrammarMatcher matcher =
        vocabulary.compiler->Compile(RegexGrammar(regex, "regex"))->NewMatcher();
    CompareAll(
        "abc", [&](const std::string& text) { return pcre2.Matches(text); }, &matcher, "");
    if (HasFatalFailure()) return;
  }
}

// Except POSIX classes, which are of ASCII alone.
TEST(RandomGrammars, ClassesOfCharactersAreThoseOfPcre2) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  const std::vector<std::string> texts = {
      "",   "a", "A", "ab", "a b", "7",  "42",   "a-b", "é",     "日本", "a.b",  "\n",
      "\t", " ", "_", "-",  "0x",  "\\", "\"",   "]",   "a\nb",  "Ω",    "٣",    "a@b.c",
      "{",  "}", "^", "$",  "ß",   "ſ",  "🙂", "()",  "1.5e3", "+1",   "\x7f", "ab12"};
  for (const char* regex : {"\\d+",
                            "\\w+",
                            "\\s",
                            "\\D",
                            "\\W",
                            "\\S+",
                            ".",
                            ".+",
                            "(?s:.+)",
                            "[^a]",
                            "[^\\d]",
                            "[\\w-]+",
                            "\\p{L}+",
                            "\\p{Lu}",

                            "[a-z]{1,3}\\d*",
                            "\\x41",
                            "[\\x{3b1}-\\x{3c9}\\x{3a9}]",
                            "[\\]\\[]",
                            "\\.",
                            "[.]",
                            "a|b|",
                            "(?i)aB",
                            "\\$|\\^",
                            "[+-]?\\d+(\\.\\d+)?(e\\d+)?",
                            "\\u00e9|é",
                            "\\n|\\t",
                            "[\\n\\t]"}) {
    SCOPED_TRACE(regex);
    std::shared_ptr<const Grammar> grammar;
    // A grammar refuses a class that it cannot hold; it never reads it in another way.
    const auto refused =
        ErrorOf([&] { grammar = vocabulary.compiler->Compile(RegexGrammar(regex, "regex")); });
    const FullMatch pcre2(regex);
    if (refused || !pcre2.is_valid()) continue;
    for (const std::string& text : texts) {
      GrammarMatcher matcher = grammar->NewMatcher();
      bool is_held = false;
      ErrorOf([&] {
        for (const char c : text) matcher.Commit(static_cast<unsigned char>(c));
        is_held = matcher.IsComplete();
      });
      EXPECT_EQ(is_held, pcre2.Matches(text)) << '"' << text << '"';
    }
  }
}

// A random grammar of the rules start, x and y over the letters a and b.
struct RandomRules {
  struct Part {
    std::string symbol;  // a letter or a rule
    bool is_optional = false;
  };
  using Alternative = std::vector<Part>;
  std::map<std::string, std::vector<Alternative>> rules;

  explicit RandomRules(std::mt19937& random) {
    for (const char* name : {"start", "x", "y"}) {
      const size_t n = 1 + random() % 3;
      for (size_t i = 0; i < n; ++i) {
        Alternative alternative;
        const size_t n_parts = 1 + random() % 3;
        for (size_t k = 0; k < n_parts; ++k) {
          constexpr std::array<const char*, 7> kSymbols = {"a", "b", "a", "b", "x", "y", "start"};
          alternative.push_back({kSymbols[random() % kSymbols.size()], random() % 5 == 0});
        }
        rules[name].push_back(std::move(alternative));
      }
    }
  }

  std::string Text() const {
    std::string out;
    for (const auto& [name, alternatives] : rules) {
      out += name + ":";
      for (size_t i = 0; i < alternatives.size(); ++i) {
        if (i > 0) out += " |";
        for (const Part& part : alternatives[i]) {
          out += rules.contains(part.symbol) ? " " + part.symbol : " \"" + part.symbol + "\"";
          if (part.is_optional) out += "?";
        }
      }
      out += "\n";
    }
    return out;
  }

  // Whether a rule derives no finite text.
  bool HasEndlessRule() const {
    std::set<std::string> ending = {"a", "b"};
    const auto ends = [&](const Alternative& alternative) {
      return std::all_of(alternative.begin(), alternative.end(), [&](const Part& part) {
        return part.is_optional || ending.contains(part.symbol);
      });
    };
    for (size_t before = 0; before != ending.size();) {
      before = ending.size();
      for (const auto& [name, alternatives] : rules) {
        if (std::any_of(alternatives.begin(), alternatives.end(), ends)) ending.insert(name);
      }
    }
    return ending.size() != rules.size() + 2;
  }

  // The texts of at most kMaxTextLength letters, by derivation until nothing is new.
  std::set<std::string> Language() const {
    std::map<std::string, std::set<std::string>> known = {{"a", {"a"}}, {"b", {"b"}}};
    for (bool has_grown = true; has_grown;) {
      has_grown = false;
      for (const auto& [name, alternatives] : rules) {
        for (const Alternative& alternative : alternatives) {
          std::set<std::string> texts = {""};
          for (const Part& part : alternative) {
            std::set<std::string> longer;
            for (const std::string& text : texts) {
              if (part.is_optional) longer.insert(text);
              for (const std::string& more : known[part.symbol]) {
                if (text.size() + more.size() <= kMaxTextLength) longer.insert(text + more);
              }
            }
            texts = std::move(longer);
          }
          for (const std::string& text : texts) has_grown |= known[name].insert(text).second;
        }
      }
    }
    return known["start"];
  }
};

TEST(RandomGrammars, LarkGrammarsHoldTheTextsThatTheirRulesDerive) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  std::mt19937 random(7);
  int n_compared = 0;
  for (int i = 0; i < 300; ++i) {
    const RandomRules rules(random);
    SCOPED_TRACE(rules.Text());
    const std::set<std::string> language = rules.Language();
    std::shared_ptr<const Grammar> grammar;
    const auto refused =
        ErrorOf([&] { grammar = vocabulary.compiler->Compile(LarkGrammar(rules.Text(), "lark")); });
    if (refused) {
      // Only grammars with a rule without texts, or with no more than the empty text.
      ASSERT_TRUE(rules.HasEndlessRule() || language == std::set<std::string>{""})
          << refused->what();
      continue;
    }
    ++n_compared;
    GrammarMatcher matcher = grammar->NewMatcher();
    CompareAll(
        "ab", [&](const std::string& text) { return language.contains(text); }, &matcher, "");
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(n_compared, 150);
}

}  // namespace
}  // namespace tandem::engine
