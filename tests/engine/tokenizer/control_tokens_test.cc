#include "engine/tokenizer/control_tokens.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {
namespace {

// Ids 0 to 3 are control tokens, 4 is not.
class FiveTokens : public Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view, SpecialTokens) const override { return {}; }
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

// Gives a text back as the ids of its bytes; control tokens are parsed where that is asked for.
class ByteTokens : public FiveTokens {
 public:
  std::vector<TokenId> Encode(std::string_view text, SpecialTokens special) const override {
    std::vector<TokenId> ids;
    size_t done = 0;
    const auto bytes_up_to = [&](size_t end) {
      for (; done < end; ++done) ids.push_back(1000 + text[done]);
    };
    if (special == SpecialTokens::kParseSpecial) {
      for (const auto& found : ControlTokens(*this).FindIn(text)) {
        bytes_up_to(found.begin);
        ids.push_back(found.id);
        done = found.end;
      }
    }
    bytes_up_to(text.size());
    return ids;
  }
};

TEST(EncodeWithClientText, OnlyTheTemplatesTokensAreControlTokens) {
  const ByteTokens tokenizer;
  const ControlTokens control(tokenizer);
  const std::vector<TokenId> plain = {1000 + '<', 1000 + 'b', 1000 + '>'};
  using Spans = std::vector<std::pair<size_t, size_t>>;

  EXPECT_EQ(EncodeWithClientText(tokenizer, control, "<a>x<b>", Spans{}),
            (std::vector<TokenId>{0, 1000 + 'x', 2}));
  EXPECT_EQ(EncodeWithClientText(tokenizer, control, "<b><b>", Spans{{3, 6}}),
            (std::vector<TokenId>{2, plain[0], plain[1], plain[2]}));
  // Half a client's is a client's.
  EXPECT_EQ(EncodeWithClientText(tokenizer, control, "<b>", Spans{{2, 3}}), plain);
}

}  // namespace
}  // namespace tandem::engine
