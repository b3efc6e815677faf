#include "server/wire/json_text.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "server/wire/logprobs.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

std::string Quoted(std::string_view text) {
  std::string out;
  AppendJsonString(out, text);
  return out;
}

std::string Written(double number) {
  std::string out;
  AppendJsonNumber(out, number);
  return out;
}

TEST(JsonText, EveryCharacterReadsBackAsItself) {
  std::string all;
  for (char32_t c = 0; c < 0x11000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string utf8;
    if (c < 0x80) {
      utf8 = static_cast<char>(c);
    } else if (c < 0x800) {
      utf8 = {static_cast<char>(0xc0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3f))};
    } else if (c < 0x10000) {
      utf8 = {static_cast<char>(0xe0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 0x3f)),
              static_cast<char>(0x80 | (c & 0x3f))};
    } else {
      utf8 = {static_cast<char>(0xf0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 0x3f)),
              static_cast<char>(0x80 | ((c >> 6) & 0x3f)), static_cast<char>(0x80 | (c & 0x3f))};
    }
    all += utf8;
  }

  const std::string quoted = Quoted(all);

  EXPECT_EQ(Json::parse(quoted).get<std::string>(), all);
  EXPECT_EQ(quoted, Json(all).dump());
  EXPECT_EQ(quoted.find('\n'), std::string::npos);  // an event is one line
}

// Any bytes give the same text as the reference library.
TEST(JsonText, AnyBytesGiveTheSameTextAsTheLibrary) {
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    std::string bytes;
    for (size_t i = random() % 24; i > 0; --i) {
      const char interesting[] = {'"',    '\\',   '\n',   '\0',   '\x7f',
                                  '\xc3', '\xa9', '\xe2', '\x82', 'a'};
      bytes += random() % 2 == 0 ? interesting[random() % sizeof(interesting)]
                                 : static_cast<char>(random());
    }
    EXPECT_EQ(Quoted(bytes), Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace))
        << "seed " << seed;
  }
}

TEST(JsonText, NumbersReadBackBitForBit) {
  for (const double number : {0.0, -0.0, 1.0, -9999.0, 0.1, 1e22, 1e-7, 5e-324,
                              1.7976931348623157e308, static_cast<double>(-0.1f)}) {
    const Json back = Json::parse(Written(number));
    EXPECT_TRUE(back.is_number_float()) << Written(number);
    EXPECT_EQ(std::bit_cast<uint64_t>(back.get<double>()), std::bit_cast<uint64_t>(number));
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto number = std::bit_cast<double>(random());
    const auto single = static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(random())));
    for (const double value : {number, single}) {
      if (!std::isfinite(value)) continue;
      EXPECT_EQ(std::bit_cast<uint64_t>(Json::parse(Written(value)).get<double>()),
                std::bit_cast<uint64_t>(value));
    }
  }
}

TEST(JsonText, IntegersOfAllWidths) {
  std::string out;
  AppendJsonInt(out, std::numeric_limits<int64_t>::min());
  out += ' ';
  AppendJsonInt(out, std::numeric_limits<uint64_t>::max());
  out += ' ';
  AppendJsonInts(out, std::vector<TokenId>{0, -1, 262143});
  AppendJsonInts(out, {});
  AppendJsonBytes(out, std::string_view("\0\xff", 2));

  EXPECT_EQ(out, "-9223372036854775808 18446744073709551615 [0,-1,262143][][0,255]");
}

// Without a tokenizer every token gets a name of its own, since keys must differ.
TEST(CompletionLogprobs, TheChosenTokenIsAmongItsAlternativesOnce) {
  CompletionLogprobs logprobs({}, 2);
  engine::TokenLogprob token;
  token.token = 7;
  token.logprob = -INFINITY;
  token.top = {{3, -0.5f}, {7, -1.0f}, {9, -2.0f}};
  logprobs.Add({.token = 1}, false);
  logprobs.Add(token, true);

  std::string text;
  logprobs.TakeInto(text);

  EXPECT_EQ(text,
            R"({"tokens":["token_id:1","token_id:7"],"token_logprobs":[null,-9999.0],)"
            R"("top_logprobs":[null,{"token_id:3":-0.5,"token_id:7":-1.0}],"text_offset":[0,0]})");
  EXPECT_TRUE(logprobs.empty());
}

}  // namespace
}  // namespace tandem::server
