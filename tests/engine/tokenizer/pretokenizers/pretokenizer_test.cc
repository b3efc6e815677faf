#include "engine/tokenizer/pretokenizers/pretokenizer.h"

#include <gtest/gtest.h>

#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

using Pieces = std::vector<std::string>;

Pieces Cut(const Pretokenizer& pretokenizer, std::string_view text, bool at_start = true) {
  Pieces pieces;
  pretokenizer.ForEachPiece(text, at_start,
                            [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

Pieces CutGpt2(std::string_view text) { return Cut(Pretokenizer({Gpt2Split{}}), text); }

Pieces CutAtDash(SplitBehavior behavior, bool invert = false) {
  return Cut(Pretokenizer({PatternSplit{"-", behavior, invert}}), "the-final--countdown");
}

TEST(Pretokenizer, Gpt2PiecesOfOrdinaryText) {
  EXPECT_EQ(CutGpt2("I'll say  it's 42!\n\n ok\t x"),
            (Pieces{"I", "'ll", " say", " ", " it", "'s", " 42", "!", "\n\n", " ok", "\t", " x"}));
}

TEST(Pretokenizer, Gpt2RunOfSpacesAtTheEndIsOnePiece) {
  EXPECT_EQ(CutGpt2("a   "), (Pieces{"a", "   "}));
  EXPECT_EQ(CutGpt2("\u3000\u3000x"), (Pieces{"\u3000", "\u3000", "x"}));
}

TEST(Pretokenizer, Gpt2ScannerEqualsThePatternOnRandomText) {
  const Pretokenizer pattern(
      {PatternSplit{Pattern::Compile(kGpt2Pattern, ""), SplitBehavior::kIsolated}});
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    std::mt19937_64 random(seed);
    const std::string text = RandomText(random, 1 + random() % 60, /*with_invalid=*/false);

    ASSERT_EQ(CutGpt2(text), Cut(pattern, text)) << "seed " << seed;
  }
}

TEST(Pretokenizer, SplitBehaviors) {
  EXPECT_EQ(CutAtDash(SplitBehavior::kRemoved), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(CutAtDash(SplitBehavior::kIsolated),
            (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(CutAtDash(SplitBehavior::kMergedWithPrevious),
            (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(CutAtDash(SplitBehavior::kMergedWithNext),
            (Pieces{"the", "-final", "-", "-countdown"}));
  EXPECT_EQ(CutAtDash(SplitBehavior::kContiguous),
            (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(CutAtDash(SplitBehavior::kRemoved, /*invert=*/true), (Pieces{"-", "-", "-"}));
}

TEST(Pretokenizer, PatternsThatMatchNothingCutNothing) {
  const Pretokenizer pretokenizer(
      {PatternSplit{Pattern::Compile("x*", ""), SplitBehavior::kIsolated}});

  EXPECT_EQ(Cut(pretokenizer, "a\u00e9xxb"), (Pieces{"a\u00e9", "xx", "b"}));
}

TEST(Pretokenizer, PrefixSpaceIsAddedOnceAndOnlyAtAStart) {
  const Pretokenizer pretokenizer({PrefixSpace{}, Gpt2Split{}});

  EXPECT_EQ(Cut(pretokenizer, "a b"), (Pieces{" a", " b"}));
  EXPECT_EQ(Cut(pretokenizer, " a"), (Pieces{" a"}));
  EXPECT_EQ(Cut(pretokenizer, "a b", /*at_start=*/false), (Pieces{"a", " b"}));
}

TEST(Pretokenizer, StagesCutThePiecesOfTheStagesBefore) {
  const Pretokenizer pretokenizer(
      {PatternSplit{Pattern::Compile(R"(\p{N})", ""), SplitBehavior::kIsolated}, Gpt2Split{}});

  EXPECT_EQ(Cut(pretokenizer, "a 12"), (Pieces{"a", " ", "1", "2"}));
}

}  // namespace
}  // namespace tandem::engine
