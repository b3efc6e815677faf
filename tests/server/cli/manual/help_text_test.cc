#include "server/cli/manual/help_text.h"

#include <gtest/gtest.h>

#include "engine/base/edit_distance.h"
#include "tests/server/cli/manual/verb_doc_fixture.h"

namespace tandem::server {
namespace {

TEST(HelpText, NamesArgumentsFlagsChoicesAndDefaults) {
  const std::string text = HelpText(SmallProgram().verbs[0], 100);

  EXPECT_NE(text.find("Usage: tandem pack [flags] source\n"), std::string::npos) << text;
  EXPECT_NE(text.find("model's path (required)"), std::string::npos) << text;
  EXPECT_NE(text.find("-d, --dtype WORD"), std::string::npos) << text;
  EXPECT_NE(text.find("weight type (one of int8, int4; default: int8)"), std::string::npos) << text;
  EXPECT_NE(text.find("compute threads (from 0 to 9)"), std::string::npos) << text;
  EXPECT_NE(text.find("Exit codes: 0 done; 1 failed;"), std::string::npos) << text;
}

TEST(HelpText, WrapsTextToTheWidth) {
  VerbDoc verb = SmallProgram().verbs[0];
  verb.flags[1].help =
      "a long text of many short words that has to be wrapped at the width of the "
      "terminal or it would be hard to read";
  for (const int columns : {40, 60, 80}) {
    const std::string text = HelpText(verb, columns);
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      EXPECT_LE(end - at, static_cast<size_t>(std::max(columns, 55))) << text.substr(at, end - at);
      at = end + 1;
    }
  }
}

TEST(HelpText, ListsTheVerbsOfAVerb) {
  const std::string text = HelpText(SmallProgram(), 80);

  EXPECT_NE(text.find("Subcommands:\n  pack  pack the weights of a model\n"), std::string::npos);
}

TEST(NearestWord, FindsATypoAndRefusesAnotherWord) {
  EXPECT_EQ(NearestWord("int9", {"int8", "bf16"}), "int8");
  EXPECT_EQ(NearestWord("srve", {"serve", "train"}), "serve");
  EXPECT_EQ(NearestWord("frobnicate", {"serve", "train"}), "");
  EXPECT_EQ(DidYouMean("frobnicate", {"serve"}), "");
  EXPECT_EQ(DidYouMean("srve", {"serve"}), "; did you mean serve?");
}

}  // namespace
}  // namespace tandem::server
