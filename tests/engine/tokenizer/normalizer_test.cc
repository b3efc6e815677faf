#include "engine/tokenizer/normalizer.h"

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

TEST(Graphemes, ClustersStayTogether) {
  std::vector<std::string> clusters;
  ForEachGrapheme("ae\u0301\r\n\U0001F468\u200d\U0001F469x",
                  [&](std::string_view cluster) { clusters.emplace_back(cluster); });

  EXPECT_EQ(clusters,
            (std::vector<std::string>{"a", "e\u0301", "\r\n", "\U0001F468\u200d\U0001F469", "x"}));
}

}  // namespace
}  // namespace tandem::engine
