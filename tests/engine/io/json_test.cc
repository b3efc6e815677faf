#include "engine/io/json.h"

#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/engine/io/file_helpers.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

Json Parse(std::string_view text, int max_depth = 64) {
  return ParseUntrustedJson(text, "test.json", max_depth);
}

void ExpectRefused(std::string_view text, const std::vector<std::string>& parts) {
  std::vector<std::string> all = parts;
  all.push_back("test.json: ");
  ExpectError(ErrorCode::kDataLoss, all, [&] { Parse(text); });
}

TEST(UntrustedJson, BuildsWhatTheLibraryItselfWouldBuild) {
  const std::vector<std::string> texts = {
      "null",
      "true",
      "-5",
      "18446744073709551615",
      "1.5e3",
      "\"\"",
      "[]",
      "{}",
      "[[],{},[[]]]",
      R"({"z": 1, "a": [1, -2, 3.5, "x", null, true, {"k": {}}], "m": {"b": "\u00e9\ud83d\ude00"}})",
      " \t\r\n{\"a\": \"brackets ]}[{ and \\\" inside\"} \n",
  };
  for (const std::string& text : texts) EXPECT_EQ(Parse(text), Json::parse(text)) << text;
}

TEST(UntrustedJson, KeepsTheOrderOfNames) {
  EXPECT_EQ(Parse(R"({"z":1,"a":2,"m":3})").dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(UntrustedJson, RefusesBrokenTextWithThePositionInBytes) {
  ExpectRefused("", {"unexpected end of input", "at byte 1"});
  ExpectRefused("{\"a\": }", {"unexpected '}'", "at byte 7"});
  ExpectRefused("[1, 2", {"unexpected end of input", "at byte 6"});
  ExpectRefused("\"abc", {"missing closing quote", "at byte 5"});
  ExpectRefused("[01]", {"at byte 3"});
  ExpectRefused("[1,]", {"at byte 4"});
  ExpectRefused("{'a': 1}", {"at byte 2"});
  ExpectRefused("// comment\n1", {"at byte 1"});
  ExpectRefused("]]]]", {"at byte 1"});
}

TEST(UntrustedJson, RefusesTrailingText) {
  ExpectRefused("{} {}", {"at byte 4"});
  ExpectRefused("1 x", {"at byte 3"});
  // nlohmann's parser stops at NUL and would ignore the rest.
  ExpectRefused(std::string_view("{}\0{}", 5), {"control character", "at byte 3"});
}

TEST(UntrustedJson, RefusesNumbersThatAreNone) {
  ExpectRefused("NaN", {"at byte 1"});
  ExpectRefused("[Infinity]", {"at byte 2"});
  ExpectRefused("[-Infinity]", {"at byte 3"});
  ExpectRefused("[1e999]", {"number out of range", "at byte"});
}

TEST(UntrustedJson, RefusesInvalidUtf8) {
  ExpectRefused("\"\xff\"", {"ill-formed UTF-8", "at byte 2"});
  ExpectRefused("\"\xc0\xaf\"", {"ill-formed UTF-8"});          // overlong '/'
  ExpectRefused("\"\xed\xa0\x80\"", {"ill-formed UTF-8"});      // a lone surrogate, encoded
  ExpectRefused("\"\xf4\x90\x80\x80\"", {"ill-formed UTF-8"});  // beyond U+10FFFF
  ExpectRefused("\"\xe2\x82", {"test.json"});                   // truncated in a character
  ExpectRefused(R"("\ud800")", {"surrogate"});
  ExpectRefused("\"a\nb\"", {"control character", "at byte 3"});
}

TEST(UntrustedJson, RefusesDuplicateNamesAtEveryLevel) {
  ExpectRefused(R"({"a": 1, "b": 2, "a": 3})", {"duplicate name 'a'", "at byte 24"});
  ExpectRefused(R"([{"x": {"same": 1, "same": 1}}])", {"duplicate name 'same'"});
  ExpectRefused(R"({"a": 1, "\u0061": 3})", {"duplicate name 'a'"});
  EXPECT_NO_THROW(Parse(R"({"a": {"a": 1}, "b": {"a": 2}})"));
}

TEST(UntrustedJson, LimitsTheDepthExactly) {
  EXPECT_NO_THROW(Parse("[[{\"a\":[]}]]", 4));
  ExpectError(ErrorCode::kDataLoss, {"nesting deeper than 3 levels at byte 8"},
              [] { Parse("[[{\"a\":[]}]]", 3); });
  EXPECT_NO_THROW(Parse("\"[[[[[[\"", 0));
  EXPECT_NO_THROW(Parse("[\"\\\"[[[[\"]", 1));
}

TEST(UntrustedJson, RefusesAMillionLevelsBeforeBuildingAnything) {
  ExpectRefused(std::string(1000000, '['), {"nesting deeper than 64 levels at byte 65"});
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  ExpectRefused(objects, {"nesting deeper than 64 levels"});
}

// A linear search at each insertion would need 10^10 comparisons and exceed the time limit.
TEST(UntrustedJson, ReadsAnObjectOfManyNames) {
  std::string text = "{";
  for (int i = 0; i < 150000; ++i) text += "\"name" + std::to_string(i) + "\":" + "0,";
  text.back() = '}';

  EXPECT_EQ(Parse(text).size(), 150000u);
}

TEST(UntrustedJson, MessagesDoNotRepeatLongTexts) {
  ExpectRefused("[\"" + std::string(100000, 'x'), {"missing closing quote"});
  ExpectRefused("{\"" + std::string(5000, 'x') + "\":1,\"" + std::string(5000, 'x') + "\":1}",
                {"duplicate name 'xxx", "…'"});
}

TEST(UntrustedJson, EveryPrefixIsRefused) {
  const std::string text = R"({"a": [1, -2.5e3, "x\u00e9\n", null, true], "b": {"c": false}})";
  ASSERT_NO_THROW(Parse(text));
  for (size_t size = 0; size < text.size(); ++size) ExpectRefused(text.substr(0, size), {});
}

TEST(UntrustedJson, FlippedBytesParseOrThrowError) {
  const std::string text =
      R"({"a": [1, -2.5e3, "x\u00e9\n", null, true], "b": {"c": false, "dé": "🙂"}, "e": [[{}]]})";
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    std::string broken = text;
    for (unsigned flips = random() % 3 + 1; flips > 0; --flips) {
      broken[random() % broken.size()] = static_cast<char>(random());
    }
    try {
      Parse(broken).dump();  // dump would throw on text that is not UTF-8
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kDataLoss) << "seed " << kSeed << " round " << i;
    }
  }
}

TEST(JsonFields, GiveTheValueOrTheFallback) {
  const Json config = Parse(
      R"({"n": 7, "x": 0.5, "b": true, "s": "text", "none": null, "whole": 4096.0, "neg": -3})");

  EXPECT_EQ(JsonInt(config, "n", 0, 10, "c"), 7);
  EXPECT_EQ(JsonInt(config, "neg", -5, 10, "c"), -3);
  EXPECT_EQ(JsonInt(config, "whole", 0, 5000, "c"), 4096);
  EXPECT_EQ(JsonIntOr(config, "n", 1, 0, 10, "c"), 7);
  EXPECT_EQ(JsonIntOr(config, "absent", 1, 0, 10, "c"), 1);
  EXPECT_EQ(JsonIntOr(config, "none", 1, 0, 10, "c"), 1);
  EXPECT_EQ(JsonNumberOr(config, "x", 2, 0, 1, "c"), 0.5);
  EXPECT_EQ(JsonNumberOr(config, "n", 2, 0, 10, "c"), 7.0);
  EXPECT_EQ(JsonNumberOr(config, "absent", 2, 0, 1, "c"), 2.0);
  EXPECT_TRUE(JsonBoolOr(config, "b", false, "c"));
  EXPECT_FALSE(JsonBoolOr(config, "none", false, "c"));
  EXPECT_EQ(JsonStringOr(config, "s", "other", "c"), "text");
  EXPECT_EQ(JsonStringOr(config, "absent", "other", "c"), "other");
}

TEST(JsonFields, NameSourceAndFieldOfWhatIsWrong) {
  const Json config = Parse(
      R"({"n": 7, "half": 0.5, "s": "text", "big": 18446744073709551615, "none": null, "huge": 1e300})");
  const auto refused = [&](const std::vector<std::string>& parts, const auto& action) {
    std::vector<std::string> all = parts;
    all.push_back("config.json");
    ExpectError(ErrorCode::kDataLoss, all, action);
  };
  const std::string source = "config.json";
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

  refused({"'absent'", "missing"}, [&] { JsonInt(config, "absent", 0, 1, source); });
  refused({"'none'", "missing"}, [&] { JsonInt(config, "none", 0, 1, source); });
  refused({"'n'", "[8, 10]", "7"}, [&] { JsonInt(config, "n", 8, 10, source); });
  refused({"'n'", "[0, 6]", "7"}, [&] { JsonIntOr(config, "n", 1, 0, 6, source); });
  refused({"'half'", "integer", "0.5"}, [&] { JsonInt(config, "half", 0, 10, source); });
  refused({"'big'", "18446744073709551615"}, [&] { JsonInt(config, "big", 0, kMax, source); });
  refused({"'huge'"}, [&] { JsonInt(config, "huge", 0, kMax, source); });
  refused({"'s'", "integer", "string"}, [&] { JsonInt(config, "s", 0, 10, source); });
  refused({"'n'", "[0.0, 1.0]"}, [&] { JsonNumberOr(config, "n", 0, 0, 1, source); });
  refused({"'s'", "number"}, [&] { JsonNumberOr(config, "s", 0, 0, 1, source); });
  refused({"'n'", "true or false"}, [&] { JsonBoolOr(config, "n", false, source); });
  refused({"'n'", "string"}, [&] { JsonStringOr(config, "n", "", source); });
  refused({"'n'", "object"}, [&] { JsonInt(Json::array(), "n", 0, 1, source); });
}

}  // namespace
}  // namespace tandem::engine
