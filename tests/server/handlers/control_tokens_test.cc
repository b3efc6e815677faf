#include "server/handlers/control_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::server {
namespace {

// Ids 0 to 3 are control tokens, 4 is not.
class FiveTokens : public engine::Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view, engine::SpecialTokens) const override { return {}; }
  int64_t vocab_size() const override { return 5; }
  std::string_view TokenBytes(TokenId id) const override {
    static constexpr std::string_view kBytes[] = {"<a>", "<a><b>", "<b>", "", "<c>"};
    return kBytes[id];
  }
  bool IsSpecial(TokenId id) const override { return id < 4; }
  std::optional<TokenId> FindToken(std::string_view) const override { return std::nullopt; }
};

std::string Found(const std::string& text) {
  std::string out;
  for (const auto& occurrence : ControlTokens(FiveTokens()).FindIn(text)) {
    out += std::to_string(occurrence.id) + "@" + std::to_string(occurrence.begin) + "-" +
           std::to_string(occurrence.end) + " ";
  }
  return out;
}

TEST(ControlTokens, TakesTheLongestFromLeftToRight) {
  EXPECT_EQ(Found("x<a>y<b>"), "0@1-4 2@5-8 ");
  EXPECT_EQ(Found("<a><b><b>"), "1@0-6 2@6-9 ");
  EXPECT_EQ(Found("<a><b"), "0@0-3 ");
}

TEST(ControlTokens, LeavesOrdinaryTextAndTokensAlone) {
  EXPECT_EQ(Found("<<a <c> >"), "");
  EXPECT_EQ(Found(""), "");
  EXPECT_TRUE(ControlTokens().FindIn("<a>").empty());
}

}  // namespace
}  // namespace tandem::server
