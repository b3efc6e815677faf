#include "engine/speculation/prompt_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tandem::engine {
namespace {

using Tokens = std::vector<TokenId>;

Tokens DraftOf(const Tokens& text, int64_t most) {
  PromptLookup lookup;
  lookup.Add(text);
  Tokens draft;
  lookup.Draft(most, draft);
  return draft;
}

TEST(PromptLookup, ContinuesTheEarlierOccurrence) {
  EXPECT_EQ(DraftOf({1, 2, 3, 4, 5, 6, 9, 2, 3, 4}, 2), (Tokens{5, 6}));
  EXPECT_EQ(DraftOf({1, 2, 3, 4, 5, 6, 9, 2, 3, 4}, 4), (Tokens{5, 6, 9, 2}));
}

TEST(PromptLookup, NeedsThreeEqualTokens) {
  EXPECT_EQ(DraftOf({}, 4), Tokens());
  EXPECT_EQ(DraftOf({1, 2}, 4), Tokens());
  EXPECT_EQ(DraftOf({1, 2, 3}, 4), Tokens());
  EXPECT_EQ(DraftOf({1, 2, 7, 8, 1, 2}, 4), Tokens());
  EXPECT_EQ(DraftOf({0, 1, 2, 7, 0, 1, 2}, 1), (Tokens{7}));
  EXPECT_EQ(DraftOf({0, 1, 2, 7, 0, 1, 2}, 0), Tokens());
}

TEST(PromptLookup, PrefersTheLongestMatchThenTheLatest) {
  // 7 1 2 3 is longer than the later 1 2 3.
  EXPECT_EQ(DraftOf({7, 1, 2, 3, 50, 8, 1, 2, 3, 60, 7, 1, 2, 3}, 1), (Tokens{50}));
  EXPECT_EQ(DraftOf({8, 1, 2, 3, 50, 9, 1, 2, 3, 60, 7, 1, 2, 3}, 1), (Tokens{60}));
}

TEST(PromptLookup, AMatchThatOverlapsTheEndRepeats) {
  EXPECT_EQ(DraftOf({5, 5, 5, 5}, 3), (Tokens{5, 5, 5}));
  EXPECT_EQ(DraftOf({1, 2, 1, 2, 1, 2}, 5), (Tokens{1, 2, 1, 2, 1}));
}

TEST(PromptLookup, PiecesGiveTheSameDraftsAsTheWholeText) {
  std::mt19937 random(5);
  Tokens text;
  for (int i = 0; i < 3000; ++i) text.push_back(static_cast<TokenId>(random() % 7));
  PromptLookup pieces;
  size_t added = 0;
  while (added < text.size()) {
    const size_t n = std::min<size_t>(text.size() - added, 1 + random() % 40);
    pieces.Add(std::span(text).subspan(added, n));
    added += n;
    Tokens draft;
    pieces.Draft(8, draft);
    const Tokens begin(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(added));
    ASSERT_EQ(draft, DraftOf(begin, 8)) << added;
  }
  EXPECT_EQ(pieces.length(), 3000);
}

TEST(PromptLookup, DraftsFollowTheirMatchInRandomTexts) {
  std::mt19937 random(6);
  int n_drafts = 0;
  for (int round = 0; round < 500; ++round) {
    Tokens text;
    const size_t length = 3 + random() % 60;
    while (text.size() < length) text.push_back(static_cast<TokenId>(random() % 3));
    const Tokens draft = DraftOf(text, 1);
    if (draft.empty()) continue;
    ++n_drafts;
    // Some occurrence of the last three tokens is followed by the draft.
    const Tokens wanted = {text[length - 3], text[length - 2], text[length - 1], draft[0]};
    EXPECT_NE(std::search(text.begin(), text.end(), wanted.begin(), wanted.end()), text.end());
  }
  EXPECT_GT(n_drafts, 100);
}

}  // namespace
}  // namespace tandem::engine
