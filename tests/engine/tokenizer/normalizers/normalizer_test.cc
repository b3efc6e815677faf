#include "engine/tokenizer/normalizers/normalizer.h"

#include <gtest/gtest.h>

#include "engine/base/error.h"
#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

std::string Apply(Normalizer::Step step, std::string_view text, bool at_start = true) {
  return Normalizer({std::move(step)}).Apply(text, at_start).text;
}

TEST(Normalizer, StepsDoWhatTheirNamesSay) {
  EXPECT_EQ(Apply(PrependStep("_"), "a"), "_a");
  EXPECT_EQ(Apply(PrependStep("_"), ""), "");
  EXPECT_EQ(Apply(PrependStep("_"), "a", /*at_start=*/false), "a");
  EXPECT_EQ(Apply(ReplaceStep("aa", "a"), "aaaaa"), "aaa");
  EXPECT_EQ(Apply(ReplaceStep(Pattern::Compile("[bc]+", ""), "-"), "abcbad"), "a-ad");
  EXPECT_EQ(Apply(StripStep(true, false), "\u3000 a \n"), "a \n");
  EXPECT_EQ(Apply(StripStep(false, true), " a \u2028"), " a");
  EXPECT_EQ(Apply(StripStep(true, true), " \t"), "");
  EXPECT_EQ(Apply(LowercaseStep(), "\u0130\u03a3\u00c9A"), "i\u0307\u03c3\u00e9a");
  EXPECT_EQ(Apply(StripAccentsStep(), "e\u0301\u0903x"), "ex");
  EXPECT_EQ(Apply(NmtStep(), "a\x01\tb\u200bc"), "a b c");
  EXPECT_EQ(Apply(ByteLevelStep(), " \u00e9"), "\u0120\u00c3\u00a9");
  EXPECT_EQ(Apply(BertStep({}), "\u00c9t\u00e9\u4e2d\u200dx\tA"), "ete \u4e2d x a");
  EXPECT_EQ(Apply(BertStep({.clean_text = false,
                            .handle_chinese_chars = false,
                            .strip_accents = false,
                            .lowercase = false}),
                  "\u00c9\t"),
            "\u00c9\t");
}

TEST(Normalizer, RemembersWhetherTheFrontWasRemoved) {
  const auto front_removed = [](Normalizer::Step step, std::string_view text) {
    return Normalizer({std::move(step)}).Apply(text, true).front_removed;
  };

  EXPECT_TRUE(front_removed(StripStep(true, true), " a"));
  EXPECT_FALSE(front_removed(StripStep(true, true), "a "));
  EXPECT_TRUE(front_removed(ReplaceStep("a", ""), "ab"));
  EXPECT_FALSE(front_removed(ReplaceStep("b", ""), "ab"));
  EXPECT_TRUE(front_removed(BertStep({}),
                            "\u200d"
                            "a"));
}

TEST(Normalizer, TextThatWouldBlowUpIsRefused) {
  const std::string long_text(1000, 'b');
  const Normalizer grows({ReplaceStep("a", long_text), ReplaceStep("b", long_text)});

  try {
    grows.Apply("a", true);
    ADD_FAILURE() << "normalised";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(grows.Apply("c", true).text, "c");
}

// Applies a step to a text with client parts in brackets; the result has the same marks.
std::string ApplyMarked(Normalizer::Step step, std::string_view marked) {
  std::string text;
  std::vector<TextRange> client;
  size_t begin = 0;
  for (const char c : marked) {
    if (c == '[') {
      begin = text.size();
    } else if (c == ']') {
      client.emplace_back(begin, text.size());
    } else {
      text += c;
    }
  }
  const NormalizedText now = Normalizer({std::move(step)}).Apply(text, true, client);
  std::string out;
  size_t done = 0;
  for (const auto& [from, to] : now.client) {
    out += now.text.substr(done, from - done) + "[" + now.text.substr(from, to - from) + "]";
    done = to;
  }
  return out + now.text.substr(done);
}

TEST(Normalizer, ClientsTextIsFollowedThroughEveryStep) {
  EXPECT_EQ(ApplyMarked(PrependStep("__"), "a[b]c[d]"), "__a[b]c[d]");
  EXPECT_EQ(ApplyMarked(ReplaceStep("ab", "xyz"), "ab[ab]a[b]ab[c]"), "xyz[xyzxyz]xyz[c]");
  EXPECT_EQ(ApplyMarked(ReplaceStep("a", ""), "b[a]b[b]"), "bb[b]");
  EXPECT_EQ(ApplyMarked(StripStep(true, true), " [ a]b[c ] "), "[a]b[c]");
  EXPECT_EQ(ApplyMarked(StripStep(true, true), "[ ] "), "");
  EXPECT_EQ(ApplyMarked(LowercaseStep(), "A[B\u00c4]C"), "a[b\u00e4]c");
  EXPECT_EQ(ApplyMarked(NmtStep(), "a\x01[\x01 b]"), "a[ b]");
  EXPECT_EQ(ApplyMarked(ByteLevelStep(), "a [ b]"), "a\u0120[\u0120b]");
  EXPECT_EQ(ApplyMarked(UnicodeStep(NormalForm::kNfd), "\u00e9[\u00e9]x"), "e\u0301[e\u0301]x");
  // A client's accent does not combine with the template's letter.
  EXPECT_EQ(ApplyMarked(UnicodeStep(NormalForm::kNfc), "xe[\u0301ye\u0301]e"),
            "xe[\u0301y\u00e9]e");
  EXPECT_EQ(ApplyMarked(BertStep({}), "A[\u4e2d]\u00c9"), "a[ \u4e2d ]e");
  EXPECT_EQ(ApplyMarked(SentencePieceStep({}), " a[  b ]c [ ]"), "\u2581a[\u2581b\u2581]c");
}

TEST(Normalizer, TheTextDoesNotDependOnWhoWroteIt) {
  const std::vector<Normalizer::Step> steps = {PrependStep("x"),      ReplaceStep("  ", "-"),
                                               StripStep(true, true), LowercaseStep(),
                                               StripAccentsStep(),    NmtStep(),
                                               ByteLevelStep(),       SentencePieceStep({})};
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    std::vector<TextRange> client;
    for (int part = 0; part < 6; ++part) {
      const size_t begin = text.size();
      text += RandomText(random, random() % 4, /*with_invalid=*/false);
      if (part % 2 == 1 && text.size() > begin) AppendRange(client, begin, text.size());
    }
    const Normalizer normalizer({steps[static_cast<size_t>(round) % steps.size()]});
    const NormalizedText now = normalizer.Apply(text, true, client);

    EXPECT_EQ(now.text, normalizer.Apply(text, true).text) << round;
    size_t done = 0;
    for (const auto& [begin, end] : now.client) {
      EXPECT_TRUE(done <= begin && begin < end && end <= now.text.size()) << round;
      done = end;
    }
  }
}

TEST(Graphemes, ClustersStayTogether) {
  std::vector<std::string> clusters;
  ForEachGrapheme("ae\u0301\r\n\U0001F468\u200d\U0001F469x",
                  [&](std::string_view cluster) { clusters.emplace_back(cluster); });

  EXPECT_EQ(clusters,
            (std::vector<std::string>{"a", "e\u0301", "\r\n", "\U0001F468\u200d\U0001F469", "x"}));
}

}  // namespace
}  // namespace tandem::engine
