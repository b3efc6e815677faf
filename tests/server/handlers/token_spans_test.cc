#include "server/handlers/token_spans.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::server {
namespace {

// Token i spells the i-th of these; 0 and 1 are control tokens.
class Words : public engine::Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view, engine::SpecialTokens) const override { return {}; }
  int64_t vocab_size() const override { return 8; }
  std::string_view TokenBytes(TokenId id) const override {
    static constexpr std::string_view kBytes[] = {"<s>", "</t>", " Hi",  "you",
                                                  "!\n", "\xc3", "\xa9", "\n"};
    return kBytes[id];
  }
  bool IsSpecial(TokenId id) const override { return id < 2; }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }
};

using Spans = std::vector<std::pair<size_t, size_t>>;

TEST(TokenSpans, FollowTheBytesOfTheText) {
  const Words words;

  EXPECT_EQ(TokenSpans(words, "<s> Hié", {0, 2, 5, 6}), (Spans{{0, 3}, {3, 6}, {6, 7}, {7, 8}}));
  // The tokenizer's own space is not in the text; a control token may swallow white space.
  EXPECT_EQ(TokenSpans(words, "Hiyou", {2, 3}), (Spans{{0, 2}, {2, 5}}));
  EXPECT_EQ(TokenSpans(words, "you  </t>you", {3, 1, 3}), (Spans{{0, 3}, {5, 9}, {9, 12}}));
  // Never beyond the text, whatever the ids.
  EXPECT_EQ(TokenSpans(words, "y", {3, 3}), (Spans{{0, 1}, {1, 1}}));
}

TEST(LossMask, CoversWhatIsLearnedAndTheTokenThatEndsTheTurn) {
  const Words words;
  EncodedChat chat;
  chat.pieces = {{"<s>", false, false},     {"you", true, false}, {"</t>", false, false},
                 {" Hiyou!", true, true},   {"\n", false, false}, {"you", true, true},
                 {"</t></t>", false, false}};
  chat.ids = {0, 3, 1, 2, 3, 4, 3, 1, 1};

  // "!\n" holds something learned; the second </t> ends nobody's turn.
  EXPECT_EQ(LossMask(words, chat),
            (std::vector<bool>{false, false, false, true, true, true, true, true, false}));
  for (auto& piece : chat.pieces) piece.is_learned = false;
  EXPECT_EQ(LossMask(words, chat), std::vector<bool>(9, false));
}

}  // namespace
}  // namespace tandem::server
