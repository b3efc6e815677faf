#include "engine/constrain/grammar.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <regex>
#include <string>
#include <vector>

#include "engine/constrain/binding.h"
#include "engine/constrain/json_schema.h"
#include "engine/constrain/text_grammars.h"
#include "tests/engine/constrain/constrain_test_support.h"

namespace tandem::engine {
namespace {

// A language given by a predicate, over texts of a few letters.
struct Language {
  GrammarSource source;
  std::string alphabet;
  std::function<bool(const std::string&)> contains;
  std::function<bool(const std::string&)> is_prefix = {};  // unset: searches for a completion
};

bool IsViable(const Language& language, const std::string& text, size_t more) {
  if (language.contains(text)) return true;
  if (more == 0) return false;
  return std::any_of(language.alphabet.begin(), language.alphabet.end(),
                     [&](char c) { return IsViable(language, text + c, more - 1); });
}

Language OfRegex(const std::string& regex, const std::string& alphabet) {
  return {RegexGrammar(regex, "regex"), alphabet,
          [compiled = std::regex(regex)](const std::string& text) {
            return std::regex_match(text, compiled);
          }};
}

Language OfLark(const std::string& lark, const std::string& regex, const std::string& alphabet) {
  Language language = OfRegex(regex, alphabet);
  language.source = LarkGrammar(lark, "lark");
  return language;
}

std::vector<Language> Languages() {
  return {OfRegex("(a|b){2,4}c?", "abc"),
          OfRegex("a(ba)*", "ab"),
          OfRegex("(ab|abc|b)+", "abc"),
          OfRegex("a?b?c?a", "abc"),
          OfRegex("[ab]*bb", "ab"),
          OfLark("start: start \"a\" | \"b\"", "ba*", "ab"),
          {LarkGrammar("start: \"a\" start \"b\" | \"a\" \"b\"", "lark"), "ab",
           [](const std::string& text) {
             return !text.empty() &&
                    text == std::string(text.size() / 2, 'a') + std::string(text.size() / 2, 'b');
           },
           [](const std::string& text) {
             const size_t n_a = std::min(text.find('b'), text.size());
             return text.find_first_not_of('b', n_a) == std::string::npos &&
                    text.find('c') == std::string::npos && text.size() <= 2 * n_a;
           }},
          OfLark("start: x x\nx: \"a\" | \"ab\"", "(a|ab)(a|ab)", "ab"),
          {ChoiceGrammar(std::vector<std::string>{"a", "ab", "ba", "cab"}, "choice"), "abc",
           [](const std::string& text) {
             return text == "a" || text == "ab" || text == "ba" || text == "cab";
           }}};
}

// Compares every mask within `depth` tokens, going back by Rollback.
void CompareFrom(const Language& language, const Vocabulary& vocabulary, GrammarMatcher& matcher,
                 const std::string& text, int depth) {
  SCOPED_TRACE("after \"" + text + "\"");
  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  const bool can_go_on = matcher.Mask(mask);
  const bool is_complete = language.contains(text);
  ASSERT_EQ(matcher.IsComplete(), is_complete);
  for (TokenId id = 0; id < vocabulary.end; ++id) {
    const std::string next = text + vocabulary.tokens[static_cast<size_t>(id)];
    const bool is_viable =
        language.is_prefix ? language.is_prefix(next) : IsViable(language, next, 4);
    ASSERT_EQ(can_go_on && IsAllowed(mask, id), is_viable)
        << vocabulary.tokens[static_cast<size_t>(id)];
    if (!is_viable || depth == 0) continue;
    matcher.Commit(id);
    CompareFrom(language, vocabulary, matcher, next, depth - 1);
    matcher.Rollback(1);
  }
  if (can_go_on) {
    ASSERT_EQ(IsAllowed(mask, vocabulary.end), is_complete);
  }
}

TEST(Grammar, MasksAgreeWithBruteForceAfterEveryTextAndEveryRollback) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b", "c", "ab", "ba", "bb", "abc", "aa", "cc"});
  for (const Language& language : Languages()) {
    SCOPED_TRACE(language.source.text);
    GrammarMatcher matcher = vocabulary.compiler->Compile(language.source)->NewMatcher();
    CompareFrom(language, vocabulary, matcher, "", 4);
  }
}

TEST(Grammar, CommitSaysWhenNothingCanFollow) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  const auto grammar = vocabulary.compiler->Compile(RegexGrammar("ab?", "regex"));
  GrammarMatcher matcher = grammar->NewMatcher();

  EXPECT_FALSE(matcher.Commit(0));
  EXPECT_TRUE(matcher.IsComplete());
  EXPECT_TRUE(matcher.Commit(1));

  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  EXPECT_FALSE(matcher.Mask(mask));
}

TEST(Grammar, ATokenOutsideTheMaskEndsTheMatcherWithAnError) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  GrammarMatcher matcher = vocabulary.compiler->Compile(RegexGrammar("aa", "regex"))->NewMatcher();

  EXPECT_TRUE(ErrorOf([&] { matcher.Commit(1); }).has_value());
  EXPECT_TRUE(ErrorOf([&] { matcher.Commit(0); }).has_value());
}

TEST(Grammar, ForcedBytesBeginEveryContinuation) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b", "c"});
  GrammarMatcher matcher =
      vocabulary.compiler->Compile(RegexGrammar("abc(a|b)", "regex"))->NewMatcher();

  EXPECT_EQ(matcher.Forced(16), "abc");
}

TEST(Grammar, MatchersOfOneGrammarDoNotDependOnEachOther) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  const auto grammar = vocabulary.compiler->Compile(RegexGrammar("a*b", "regex"));
  GrammarMatcher ahead = grammar->NewMatcher();
  ahead.Commit(1);
  GrammarMatcher fresh = grammar->NewMatcher();

  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  ASSERT_TRUE(fresh.Mask(mask));
  EXPECT_TRUE(IsAllowed(mask, 0));
  EXPECT_TRUE(IsAllowed(mask, 1));
  EXPECT_FALSE(IsAllowed(mask, vocabulary.end));
}

TEST(Grammar, TheSameTextCompilesOnce) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  const auto first = vocabulary.compiler->Compile(RegexGrammar("a", "regex"));

  EXPECT_EQ(vocabulary.compiler->Compile(RegexGrammar("a", "regex")), first);
  EXPECT_NE(vocabulary.compiler->Compile(RegexGrammar("b", "regex")), first);
}

TEST(Grammar, TheOldestGrammarsLeaveTheCache) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  const auto number = [&](int i) {
    return vocabulary.compiler->Compile(RegexGrammar("a{" + std::to_string(i) + "}", "regex"));
  };
  const std::weak_ptr<const Grammar> oldest = number(1);
  for (int i = 2; i <= 64; ++i) number(i);
  EXPECT_FALSE(oldest.expired());
  number(65);

  EXPECT_TRUE(oldest.expired());
}

TEST(Grammar, AVocabularyReadAheadGivesTheSameMasks) {
  TANDEM_NEED_LLGUIDANCE();
  const auto tokens = std::make_shared<ListedTokens>(std::vector<std::string>{"a", "b", "ab"});
  GrammarCompiler ahead(tokens, {}, 3);
  ahead.ReadAhead();
  const GrammarCompiler late(tokens, {}, 3);
  const GrammarSource source = RegexGrammar("(ab)+a", "regex");
  std::vector<uint32_t> mask(1), expected(1);
  ASSERT_TRUE(ahead.Compile(source)->NewMatcher().Mask(mask));
  ASSERT_TRUE(late.Compile(source)->NewMatcher().Mask(expected));

  EXPECT_EQ(mask, expected);
}

TEST(Grammar, ACompilerMayEndWhileItReadsAhead) {
  std::vector<std::string> texts;
  for (int i = 0; i < 20'000; ++i) texts.push_back(std::to_string(i));
  const auto tokens = std::make_shared<ListedTokens>(std::move(texts));
  for (int i = 0; i < 4; ++i) GrammarCompiler(tokens, {}, 20'000).ReadAhead();
  GrammarCompiler(nullptr, {}, 4).ReadAhead();

  EXPECT_EQ(tokens.use_count(), 1);  // no thread is left
}

TEST(Grammar, ControlTokensAndTokensWithoutTextAreNeverText) {
  TANDEM_NEED_LLGUIDANCE();
  const auto tokens = std::make_shared<ListedTokens>(
      std::vector<std::string>{"a", "<tool>", "", "<tool>"}, std::set<TokenId>{1});
  const GrammarCompiler compiler(tokens, {}, 4);
  GrammarMatcher matcher = compiler.Compile(RegexGrammar("[a<>tol]+", "regex"))->NewMatcher();

  std::vector<uint32_t> mask(1);
  ASSERT_TRUE(matcher.Mask(mask));
  EXPECT_EQ(mask[0], 0b1001u);
}

TEST(Grammar, WithoutEndTokensACompleteTextWithoutContinuationEnds) {
  TANDEM_NEED_LLGUIDANCE();
  const auto tokens = std::make_shared<ListedTokens>(std::vector<std::string>{"a", "b"});
  const GrammarCompiler compiler(tokens, {}, 2);
  // Complete after "a"; the vocabulary cannot spell the rest of the other text.
  GrammarMatcher matcher = compiler.Compile(RegexGrammar("a(cc)?", "regex"))->NewMatcher();
  matcher.Commit(0);

  std::vector<uint32_t> mask(1);
  EXPECT_FALSE(matcher.Mask(mask));
}

TEST(Grammar, APanicBecomesAnError) {
  TANDEM_NEED_LLGUIDANCE();
  std::array<char, 200> text{};

  EXPECT_EQ(tandem_llguidance_panic({text.data(), text.size()}), -1);
  EXPECT_NE(std::string(text.data()).find("a panic on purpose"), std::string::npos);
}

std::string Repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

// A chain of rules, each of which uses the next.
std::string Chain(int n, bool of_terminals) {
  const std::string name = of_terminals ? "T" : "r";
  std::string out = "start: " + name + "0\n";
  for (int i = 0; i < n; ++i) {
    out += name + std::to_string(i) + ": \"a\" " + name + std::to_string(i + 1) + "\n";
  }
  return out + name + std::to_string(n) + ": \"b\"\n";
}

TEST(Grammar, HostileTextsAreRefusedOrServed) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  const auto lark = [](std::string text) {
    return GrammarSource{GrammarSource::Kind::kLark, std::move(text)};
  };
  const auto regex = [](std::string text) {
    return GrammarSource{GrammarSource::Kind::kRegex, std::move(text)};
  };
  const std::vector<GrammarSource> sources = {
      regex("(a+)+b"),
      regex("((a{0,300}){0,300}){0,300}"),
      regex(Repeated("(", 60) + "a" + Repeated("){1,9}", 60)),
      regex("(?=a)b"),
      regex("(a)\\1"),
      regex("[a"),
      regex("(.*a.{200})+"),
      regex("\\p{L}{1,1000}"),
      lark(""),
      lark("start: start"),
      lark("start: start \"a\""),
      lark("start: a\na: b\nb: a"),
      lark("start: missing"),
      lark("start: \"a\"{0,1000000}"),
      lark("start: (\"a\" | start start){1,9999}"),
      lark(Chain(1000, false)),
      lark(Chain(1000, true)),
      lark("start: " + Repeated("(", 60) + "\"a\"" + Repeated(")+", 60)),
      lark("start: %json {\"not\": {}}"),
      lark("start: /[a/"),
      lark(Repeated("start: \"a\"\n", 4000)),
      lark("start: \"" + Repeated("a", 60000) + "\""),
      lark("start: " + Repeated("\"a\" | ", 9000) + "\"b\""),
  };
  std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
  std::mt19937 random(1);
  for (const GrammarSource& source : sources) {
    SCOPED_TRACE(source.text.substr(0, 80));
    std::shared_ptr<const Grammar> grammar;
    const auto refused = ErrorOf([&] { grammar = vocabulary.compiler->Compile(source); });
    if (refused) {
      EXPECT_EQ(refused->code(), ErrorCode::kInvalidArgument);
      EXPECT_GT(std::string(refused->what()).size(), 3u);
      continue;
    }
    // A grammar that turns out too large later ends the text with an error.
    ErrorOf([&] { RandomText(vocabulary, *grammar, random, 50); });
  }
}

// A rule "start" of `n` texts, all different, with `between` before each but the first.
std::string Alternatives(const std::string& head, int n, const std::string& between) {
  std::string out = head;
  for (int i = 0; i < n; ++i) out += (i == 0 ? "" : between) + "\"w" + std::to_string(i) + "\"";
  return out + "\n";
}

TEST(Grammar, RulesOfTooManyAlternativesAreRefusedBeforeTheyCompile) {
  for (const char* between : {" | ", "\n  | "}) {
    const auto refused = ErrorOf({ErrorCode::kInvalidArgument}, [&] {
      LarkGrammar(Alternatives("start: \"go \" word\nword: ", 2500, between), "lark");
    });
    ASSERT_TRUE(refused.has_value());
    EXPECT_EQ(refused->param(), "lark");
  }
}

TEST(Grammar, ATerminalOfManyAlternativesAndARuleOfTheMostAreServedToTheEnd) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary = ByteVocabulary();
  for (const std::string& text :
       {Alternatives("start: \"go \" WORD\nWORD: ", 5000, " | "),
        Alternatives("start: \"go \" word // | of \"many\"\nword: ", 1500, "\n  | "),
        "start: \"go \" /w[0-9]+|" + Repeated("x|", 3000) + "y/\n"}) {
    SCOPED_TRACE(text.substr(0, 60));
    GrammarMatcher matcher = vocabulary.compiler->Compile(LarkGrammar(text, "lark"))->NewMatcher();
    std::vector<uint32_t> mask(MaskWords(vocabulary.size()));
    for (const char c : std::string("go w1234")) {
      ASSERT_TRUE(matcher.Mask(mask));
      ASSERT_TRUE(IsAllowed(mask, c));
      matcher.Commit(c);
    }
    EXPECT_TRUE(matcher.IsComplete());
  }
}

TEST(Grammar, LanguagesWithoutTextAreRefused) {
  TANDEM_NEED_LLGUIDANCE();
  const Vocabulary vocabulary({"a", "b"});
  for (const char* text :
       {"start: start", "start: start \"a\"", "start: \"xyz\"", "start: \"a\" start",
        "start: \"a\" | \"b\" x\nx: y \"a\"\ny: \"b\" x"}) {
    SCOPED_TRACE(text);
    EXPECT_TRUE(ErrorOf({ErrorCode::kInvalidArgument}, [&] {
                  vocabulary.compiler->Compile(LarkGrammar(text, "lark"));
                }).has_value());
  }
}

TEST(Grammar, AModelWithoutTokenizerIsRefused) {
  TANDEM_NEED_LLGUIDANCE();
  const GrammarCompiler compiler(nullptr, {}, 4);

  EXPECT_TRUE(ErrorOf({ErrorCode::kUnsupported}, [&] {
                compiler.Compile(RegexGrammar("a", "regex"));
              }).has_value());
}

}  // namespace
}  // namespace tandem::engine
