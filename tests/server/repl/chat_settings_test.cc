#include "server/repl/chat_settings.h"

#include <gtest/gtest.h>

#include "engine/base/attempt.h"

namespace tandem::server {
namespace {

std::string FaultOfSetting(const std::string& name, const std::string& value) {
  ChatSettings settings;
  const auto error = ErrorOf([&] { settings.Set(name, value); });
  EXPECT_TRUE(error.has_value()) << name << " " << value;
  EXPECT_TRUE(settings.values().empty());
  return error ? error->what() : "";
}

TEST(ChatSettings, ValuesAreJson) {
  ChatSettings settings;
  settings.Set("temperature", "0.7");
  settings.Set("top_k", "40");
  settings.Set("seed", "-9007199254740992");
  settings.Set("stop", "The \"end\"");
  settings.Set("think", "off");
  EXPECT_EQ(settings.values().at("temperature"), "0.7");
  EXPECT_EQ(settings.values().at("top_k"), "40");
  EXPECT_EQ(settings.values().at("seed"), "-9007199254740992");
  EXPECT_EQ(settings.values().at("stop"), "\"The \\\"end\\\"\"");
  EXPECT_EQ(settings.values().at("think"), "false");
  settings.Set("stop", "default");
  EXPECT_FALSE(settings.Has("stop"));
}

TEST(ChatSettings, ARefusedValueNamesTheRange) {
  EXPECT_EQ(FaultOfSetting("temperature", "3"),
            "temperature must be a number from 0 to 2, got '3'");
  EXPECT_EQ(FaultOfSetting("max_tokens", "1.5"),
            "max_tokens must be an integer from 1 to 1073741824, got '1.5'");
  EXPECT_EQ(FaultOfSetting("think", "maybe"), "think must be on or off, got 'maybe'");
  FaultOfSetting("temperature", "nan");
  FaultOfSetting("temperature", "0.5x");
  FaultOfSetting("temperature", "");
  FaultOfSetting("seed", "99999999999999999999");
  FaultOfSetting("stop", std::string(257, 'x'));
  FaultOfSetting("stop", "");
}

TEST(ChatSettings, AMisspeltNameSuggestsTheNearest) {
  EXPECT_NE(FaultOfSetting("temprature", "1").find("did you mean temperature?"), std::string::npos);
  EXPECT_NE(FaultOfSetting("colour", "red").find("there are temperature"), std::string::npos);
}

TEST(ChatSettings, JsonOfAFileObeysTheSameRules) {
  ChatSettings settings;
  settings.SetJson("top_p", "0.5");
  EXPECT_THROW(settings.SetJson("top_p", "\"0.5\""), Error);
  EXPECT_THROW(settings.SetJson("top_p", "2"), Error);
  EXPECT_THROW(settings.SetJson("top_k", "1.5"), Error);
  EXPECT_THROW(settings.SetJson("stop", "[]"), Error);
  EXPECT_EQ(settings.values().size(), 1u);
}

}  // namespace
}  // namespace tandem::server
