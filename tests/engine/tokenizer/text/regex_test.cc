#include "engine/tokenizer/text/regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/base/error.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

ErrorCode CompileError(std::string_view pattern, std::string* message = nullptr) {
  try {
    Pattern::Compile(pattern, "here");
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << pattern << " compiled";
  return ErrorCode::kInternal;
}

TEST(Pattern, SpaceIsWhiteSpaceInsideAndOutsideClasses) {
  EXPECT_EQ(TranslatePattern(R"([^\s\p{L}]\s\S\\s[\S])", ""),
            R"([^\p{White_Space}\p{L}]\p{White_Space}\P{White_Space}\\s[\P{White_Space}])");
  // PCRE2's own \s includes U+180E; not every definition includes U+0085.
  EXPECT_FALSE(Pattern::Compile(R"(\s)", "").Find("\u180E", 0));
  EXPECT_TRUE(Pattern::Compile(R"(\s)", "").Find("\u0085", 0));
}

TEST(Pattern, WordCharactersIncludeMarksAndConnectors) {
  const Pattern word = Pattern::Compile(R"(\w+)", "");

  const auto match = word.Find("!a\u0301_\u203F9!", 0);

  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 1u);
  EXPECT_EQ(match->end, 9u);
}

TEST(Pattern, FindContinuesWhereItIsTold) {
  const Pattern digits = Pattern::Compile(R"(\p{N}{1,3})", "");

  const auto match = digits.Find("12345", 3);

  ASSERT_TRUE(match);
  EXPECT_EQ(match->begin, 3u);
  EXPECT_EQ(match->end, 5u);
}

TEST(Pattern, SyntaxThatTheEnginesReadDifferentlyIsRefused) {
  for (const char* pattern : {R"([a-z&&[^b]])", R"([a[bc]])", R"(\bword)", R"([\W])", R"(\h)",
                              R"((?m:a.b))", R"((*UTF)a)", R"(\Qa\E)", R"([]a])", R"(a\Kb)"}) {
    EXPECT_EQ(CompileError(pattern), ErrorCode::kUnsupported) << pattern;
  }
}

TEST(Pattern, BrokenSyntaxNamesThePlace) {
  std::string message;

  EXPECT_EQ(CompileError("(unclosed", &message), ErrorCode::kUnsupported);

  EXPECT_NE(message.find("here"), std::string::npos);
}

TEST(Pattern, RunawayBacktrackingIsAnErrorAndNotAHang) {
  const Pattern runaway = Pattern::Compile(R"((?:a|a)+\z)", "here");
  const std::string text = std::string(400, 'a').append("!");

  try {
    runaway.Find(text, 0);
    FAIL() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("limit"), std::string::npos) << error.what();
  }
}

TEST(Pattern, MegabytesOfOneClassStayWithinTheLimits) {
  const Pattern llama3 = Pattern::Compile(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+)"
      R"([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "");
  for (const char* unit : {" ", "a", "!", "\u00e9", "\u3000"}) {
    std::string text;
    while (text.size() < 2'000'000) text += unit;

    const auto match = llama3.Find(text + "x", 0);

    ASSERT_TRUE(match);
    EXPECT_GE(match->end, text.size() - 3) << unit;
  }
}

// The scanner for GPT-2's pattern uses ICU, patterns use PCRE2; their Unicode versions differ.
TEST(Pattern, ClassesAgreeWithIcuOnEveryAssignedCharacter) {
  std::string all;
  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    AppendUtf8(c, all);
  }
  const auto members = [&](const char* pattern) {
    std::vector<bool> found(0x110000);
    const Pattern compiled = Pattern::Compile(pattern, "");
    for (size_t from = 0; from < all.size();) {
      const auto match = compiled.Find(all, from);
      if (!match) break;
      for (size_t i = match->begin; i < match->end;) {
        const Utf8Char c = DecodeUtf8(all.data() + i);
        found[c.value] = true;
        i += c.size;
      }
      from = match->end;
    }
    return found;
  };
  const auto letters = members(R"(\p{L}+)"), numbers = members(R"(\p{N}+)"),
             spaces = members(R"(\s+)"), unassigned = members(R"(\p{Cn}+)");

  for (uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (unassigned[c]) continue;
    const CharClass expected = letters[c]   ? CharClass::kLetter
                               : numbers[c] ? CharClass::kNumber
                               : spaces[c]  ? CharClass::kSpace
                                            : CharClass::kOther;
    ASSERT_EQ(ClassOf(c), expected) << std::hex << c;
  }
}

}  // namespace
}  // namespace tandem::engine
