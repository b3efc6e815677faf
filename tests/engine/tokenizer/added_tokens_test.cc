#include "engine/tokenizer/added_tokens.h"

#include <gtest/gtest.h>

#include "tests/engine/tokenizer/tokenizer_test_support.h"

namespace tandem::engine {
namespace {

// Renders a split: ordinary text as is, tokens as {id}.
std::string Cut(const std::vector<AddedToken>& tokens, std::string_view text,
                const std::vector<TextRange>& client = {}) {
  std::string out;
  AddedTokenMatcher(tokens).Split(
      text, client,
      [&](std::string_view ordinary) { out.append("(").append(ordinary).append(")"); },
      [&](TokenId id) { out.append("{").append(std::to_string(id)).append("}"); });
  return out;
}

TEST(AddedTokens, TheLeftmostAndThereTheLongestWins) {
  const std::vector<AddedToken> tokens = {{.content = "ab", .id = 0},
                                          {.content = "abcd", .id = 1},
                                          {.content = "bcdef", .id = 2},
                                          {.content = "<s>", .id = 3}};

  EXPECT_EQ(Cut(tokens, "xabcdef<s>"), "(x){1}(ef){3}");
  EXPECT_EQ(Cut(tokens, "abcx"), "{0}(cx)");
  EXPECT_EQ(Cut(tokens, "<s<s>"), "(<s){3}");
  EXPECT_EQ(Cut(tokens, ""), "");
}

TEST(AddedTokens, SingleWordsDoNotTouchWordCharacters) {
  const std::vector<AddedToken> tokens = {{.content = "dog", .id = 0, .single_word = true}};

  EXPECT_EQ(Cut(tokens, "dog, hotdog dogs \u00e9dog dog\u0301 (dog)"),
            "{0}(, hotdog dogs \u00e9dog dog\u0301 (){0}())");
}

TEST(AddedTokens, StrippingTokensTakeWhiteSpaceButNotTwice) {
  const std::vector<AddedToken> tokens = {
      {.content = "<l>", .id = 0, .lstrip = true},
      {.content = "<r>", .id = 1, .rstrip = true},
  };

  EXPECT_EQ(Cut(tokens, "a \u3000\n<l> b"), "(a){0}( b)");
  EXPECT_EQ(Cut(tokens, "a <r> \t b"), "(a ){1}(b)");
  EXPECT_EQ(Cut(tokens, "<r>  <l>"), "{1}{0}");
}

TEST(AddedTokens, MarkupSteersTheModelEvenIfNotCalledSpecial) {
  EXPECT_TRUE((AddedToken{.content = "x", .special = true}).is_control());
  EXPECT_TRUE((AddedToken{.content = "<tool_call>"}).is_control());
  EXPECT_TRUE((AddedToken{.content = "[INST]"}).is_control());
  EXPECT_FALSE((AddedToken{.content = "    "}).is_control());
  EXPECT_TRUE((AddedToken{.content = "/think"}).is_control());
}

TEST(AddedTokens, WhiteSpaceWordsPlaceholdersAndTagsOfHtmlAreVocabulary) {
  for (const char* content : {"    ", "\n\n", "caf\u00e9", "\u2581\u2581", "\u00f7", "!", "\xC3",
                              "|||EMAIL|||", "<table>", "</h1>", "<code>"}) {
    EXPECT_FALSE((AddedToken{.content = content}).is_control()) << content;
  }
}

TEST(AddedTokens, ControlTokensAreFoundOnlyWhereNoByteIsAClients) {
  const std::vector<AddedToken> tokens = {{.content = "<a>", .id = 0},
                                          {.content = "<a><b>", .id = 1},
                                          {.content = "<b>", .id = 2, .special = true},
                                          {.content = "  ", .id = 3}};

  EXPECT_EQ(Cut(tokens, "<a><b>"), "{1}");
  // The longest token ends in a client's text; a shorter one does not.
  EXPECT_EQ(Cut(tokens, "<a><b>", {{3, 6}}), "{0}(<b>)");
  EXPECT_EQ(Cut(tokens, "<b><b><b>", {{3, 6}}), "{2}(<b>){2}");
  EXPECT_EQ(Cut(tokens, "<b>", {{2, 3}}), "(<b>)");
  EXPECT_EQ(Cut(tokens, "<b>", {{0, 1}}), "(<b>)");
  EXPECT_EQ(Cut(tokens, "<b>x<b>", {{3, 4}}), "{2}(x){2}");
  EXPECT_EQ(Cut(tokens, "<b>  <b>  ", {{0, 4}, {8, 10}}), "(<b>){3}{2}{3}");
}

}  // namespace
}  // namespace tandem::engine
