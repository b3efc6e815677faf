#include "engine/loop/output.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace tandem::engine {
namespace {

// Token i is the i-th string; the last one is special.
class WordTokenizer : public Tokenizer {
 public:
  explicit WordTokenizer(std::vector<std::string> words) : words_(std::move(words)) {}
  std::vector<TokenId> EncodeMixed(std::string_view, std::span<const TextRange>) const override {
    return {};
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(words_.size()); }
  std::string_view TokenBytes(TokenId id) const override { return words_[static_cast<size_t>(id)]; }
  bool IsSpecial(TokenId id) const override { return id + 1 == vocab_size(); }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }

 private:
  std::vector<std::string> words_;
};

class SpacingTokenizer : public WordTokenizer {
 public:
  using WordTokenizer::WordTokenizer;
  bool adds_leading_space() const override { return true; }
};

struct Outcome {
  std::string text;
  std::vector<std::string> deltas;
  std::vector<std::vector<TokenId>> delta_tokens;
  size_t n_logprobs = 0;
  std::optional<ChoiceOutput::End> end;
};

Outcome Push(ChoiceOutput& output, const std::vector<TokenId>& tokens) {
  Outcome outcome;
  for (const TokenId token : tokens) {
    outcome.end = output.Push(token, {});
    if (const std::optional<TextDelta> delta = output.TakeDelta()) {
      outcome.text += delta->text;
      outcome.deltas.push_back(delta->text);
      outcome.delta_tokens.push_back(delta->token_ids);
      outcome.n_logprobs += delta->logprobs.size();
    }
    if (outcome.end) break;
  }
  return outcome;
}

ChoiceOutput::Options Base(const Tokenizer* tokenizer) {
  ChoiceOutput::Options options;
  options.tokenizer = tokenizer;
  options.stop.max_new_tokens = 100;
  options.with_logprobs = true;
  return options;
}

TEST(ChoiceOutput, SkippedTokensAddNoTextUnlessTheyAreAskedFor) {
  const WordTokenizer words({"a", "\xc3", "\xa9", "<mark>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.max_new_tokens = 6;
  const std::vector<TokenId> tokens = {3, 0, 1, 3, 2, 0};

  ChoiceOutput skips(options);
  const Outcome skipped = Push(skips, tokens);
  options.shown_special_tokens = {3};
  ChoiceOutput shows(options);
  const Outcome shown = Push(shows, tokens);

  EXPECT_EQ(skipped.text, "aéa");  // not even in the middle of a character
  EXPECT_EQ(shown.text, "<mark>a\ufffd<mark>\ufffda");
  EXPECT_EQ(shown.n_logprobs, 6u);
}

TEST(ChoiceOutput, StopStringNeverAppearsEvenInPart) {
  const WordTokenizer words({"Hello", " ST", "OP", " now", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.strings = {"STOP"};
  ChoiceOutput output(options);

  const Outcome outcome = Push(output, {0, 1, 2, 3});

  ASSERT_TRUE(outcome.end);
  EXPECT_EQ(outcome.end->stop_string, "STOP");
  EXPECT_EQ(outcome.end->reason, ChoiceFinished::Reason::kStop);
  EXPECT_EQ(outcome.text, "Hello ");
  EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"Hello", " "}));
  EXPECT_EQ(outcome.delta_tokens, (std::vector<std::vector<TokenId>>{{0}, {1, 2}}));
  EXPECT_EQ(output.n_tokens(), 3);
}

TEST(ChoiceOutput, HeldTextIsShownWhenItTurnsOutHarmless) {
  const WordTokenizer words({"ST", "ONE", "x", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.strings = {"STOP"};
  ChoiceOutput output(options);

  const Outcome outcome = Push(output, {0, 1, 2});

  EXPECT_FALSE(outcome.end);
  EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"STONE", "x"}));
  EXPECT_EQ(outcome.delta_tokens[0], (std::vector<TokenId>{0, 1}));
}

TEST(ChoiceOutput, StopStringStaysWhenAskedFor) {
  const WordTokenizer words({"a", "STOPb", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.strings = {"STOP"};
  options.stop.include_stop_string = true;
  ChoiceOutput output(options);

  EXPECT_EQ(Push(output, {0, 1}).text, "aSTOP");
}

TEST(ChoiceOutput, ASpaceThatTheTokenizerAddsIsTextWhereTheAnswerGoesOnWithThePrompt) {
  const SpacingTokenizer words({" a", " b", "<mark>"});
  ChoiceOutput::Options options = Base(&words);
  ChoiceOutput answer(options);
  EXPECT_EQ(Push(answer, {0, 1}).text, "a b");

  options.continues_text = true;
  ChoiceOutput more(options);
  EXPECT_EQ(Push(more, {0, 1}).text, " a b");
}

TEST(ChoiceOutput, EndTokenEndsWithoutText) {
  const WordTokenizer words({"a", "b", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.end_tokens = {2};
  options.skip_special_tokens = false;
  ChoiceOutput output(options);

  const Outcome outcome = Push(output, {0, 2, 1});

  ASSERT_TRUE(outcome.end);
  EXPECT_EQ(outcome.end->stop_token, 2);
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.delta_tokens.back(), (std::vector<TokenId>{2}));
  EXPECT_EQ(output.n_tokens(), 2);
}

TEST(ChoiceOutput, NothingEndsBeforeTheMinimum) {
  const WordTokenizer words({"a", "STOP", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.strings = {"STOP"};
  options.stop.min_new_tokens = 2;
  options.end_tokens = {2};
  ChoiceOutput output(options);

  EXPECT_EQ(output.banned_tokens().size(), 1u);
  const Outcome before = Push(output, {1, 1});
  EXPECT_FALSE(before.end);
  EXPECT_EQ(before.text, "STOPSTOP");
  EXPECT_TRUE(output.banned_tokens().empty());
  EXPECT_TRUE(Push(output, {1}).end);
}

TEST(ChoiceOutput, LimitEndsAndFlushesWhatWasHeld) {
  const WordTokenizer words({"ST", "\xE2\x82", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.strings = {"STOP"};
  options.stop.max_new_tokens = 2;
  ChoiceOutput output(options);

  const Outcome outcome = Push(output, {0, 1});

  ASSERT_TRUE(outcome.end);
  EXPECT_EQ(outcome.end->reason, ChoiceFinished::Reason::kLength);
  EXPECT_EQ(outcome.text, "ST\xEF\xBF\xBD");
  EXPECT_EQ(outcome.n_logprobs, 2u);
}

TEST(ChoiceOutput, HalfACharacterWaitsWithItsToken) {
  const WordTokenizer words({"\xE2\x82", "\xAC", "</s>"});
  ChoiceOutput output(Base(&words));

  const Outcome outcome = Push(output, {0, 1});

  EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"\xE2\x82\xAC"}));
  EXPECT_EQ(outcome.delta_tokens[0], (std::vector<TokenId>{0, 1}));
}

// Log-probabilities belong to tokens and must arrive with those tokens' text.
TEST(ChoiceOutput, ATokenIsShownWithAllOfItsText) {
  const WordTokenizer words({"playST", "x", "\xE2\x82", "\xAC ST", "OP", "</s>"});
  ChoiceOutput::Options options = Base(&words);
  options.stop.strings = {"STOP"};
  {
    ChoiceOutput output(options);
    const Outcome outcome = Push(output, {0, 1});
    EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"playSTx"}));
    EXPECT_EQ(outcome.delta_tokens[0], (std::vector<TokenId>{0, 1}));
  }
  {
    ChoiceOutput output(options);
    const Outcome outcome = Push(output, {2, 3, 1});
    EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"\xE2\x82\xAC STx"}));
  }
  {
    ChoiceOutput output(options);
    const Outcome outcome = Push(output, {0, 4});
    EXPECT_EQ(outcome.deltas, (std::vector<std::string>{"play"}));
    EXPECT_EQ(outcome.delta_tokens[0], (std::vector<TokenId>{0, 4}));
  }
}

// Pushes `drawn`, but the forced token where there is one, as the engine does.
std::vector<TokenId> PushForced(ChoiceOutput& output, const std::vector<TokenId>& drawn) {
  std::vector<TokenId> taken;
  for (const TokenId token : drawn) {
    taken.push_back(output.forced_token() >= 0 ? output.forced_token() : token);
    output.Push(taken.back(), {});
  }
  return taken;
}

TEST(ChoiceOutput, ALimitClosesAThoughtOnce) {
  const WordTokenizer words({"a", "<t>", "</t>"});
  ChoiceOutput::Options options = Base(&words);
  options.thought_limit = ThoughtLimit{.open = 1, .close = 2, .max_tokens = 2};

  ChoiceOutput opened_by_the_answer(options);
  EXPECT_EQ(PushForced(opened_by_the_answer, {0, 1, 0, 0, 0, 0, 0, 0}),
            (std::vector<TokenId>{0, 1, 0, 0, 2, 0, 0, 0}));
  options.thought_limit->is_open = true;
  ChoiceOutput opened_by_the_prompt(options);
  EXPECT_EQ(PushForced(opened_by_the_prompt, {0, 0, 0, 0}), (std::vector<TokenId>{0, 0, 2, 0}));
  ChoiceOutput closed_in_time(options);
  EXPECT_EQ(PushForced(closed_in_time, {0, 2, 0, 0, 0}), (std::vector<TokenId>{0, 2, 0, 0, 0}));
  ChoiceOutput no_limit(Base(&words));
  EXPECT_EQ(PushForced(no_limit, {1, 0, 0, 0, 0}), (std::vector<TokenId>{1, 0, 0, 0, 0}));
}

TEST(ChoiceOutput, WithoutTokenizerTokensComeWithoutText) {
  ChoiceOutput::Options options = Base(nullptr);
  options.stop.token_ids = {9};
  ChoiceOutput output(options);

  const Outcome outcome = Push(output, {4, 5, 9});

  EXPECT_EQ(outcome.text, "");
  EXPECT_EQ(outcome.delta_tokens.size(), 3u);
  EXPECT_EQ(outcome.end->stop_token, 9);
}

// The text does not depend on how its bytes are cut into tokens. It equals the result of a search
// in the whole text.
TEST(StopMatcher, FindsTheMatchThatEndsFirstHoweverTheTextIsCut) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    const auto letters = [&](size_t n) {
      std::string text;
      for (size_t i = 0; i < n; ++i) text += static_cast<char>('a' + random() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(letters(1 + random() % 6));
    const std::string text = letters(20);

    std::string expected = text;
    for (size_t end = 1; end <= text.size() && expected == text; ++end) {
      size_t longest = 0;
      for (const std::string& stop : stops) {
        if (text.substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
      }
      if (longest > 0) expected = text.substr(0, end - longest);
    }
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = std::min(1 + random() % 4, text.size() - at);
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < pieces.size(); ++i) tokens.push_back(static_cast<TokenId>(i));
    pieces.emplace_back("</s>");
    const WordTokenizer words(pieces);
    ChoiceOutput::Options options = Base(&words);
    options.stop.strings = stops;
    options.stop.max_new_tokens = static_cast<int64_t>(tokens.size());
    ChoiceOutput output(options);

    EXPECT_EQ(Push(output, tokens).text, expected) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tandem::engine
