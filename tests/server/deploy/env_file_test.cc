#include "server/deploy/env_file.h"

#include <gtest/gtest.h>

#include <string>

#include "engine/base/error.h"

namespace tandem::server {
namespace {

std::string TextOf(const std::string& file, const std::string& name) {
  return ParseEnvFile(file, "config.env").at(name).text;
}

std::string FaultOf(const std::string& file) {
  try {
    ParseEnvFile(file, "config.env");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(EnvFile, ReadsTheFormsOfTheSeedsScripts) {
  const std::string file =
      "# comment\r\n"
      "PROJECT_ID=my-project\n"
      "export REGION='us-east5'   # trailing\n"
      "\n"
      "IMAGE=\"gcr.io/${PROJECT_ID}/$REGION\"\n"
      "COLUMNS=\"['messages']\"\n"
      "ESCAPED=a\\ b\\$c\n"
      "DOLLAR=\"\\$5 \\\"now\\\"\"\n"
      "EMPTY=\n";

  EXPECT_EQ(TextOf(file, "PROJECT_ID"), "my-project");
  EXPECT_EQ(TextOf(file, "REGION"), "us-east5");
  EXPECT_EQ(TextOf(file, "IMAGE"), "gcr.io/my-project/us-east5");
  EXPECT_EQ(TextOf(file, "COLUMNS"), "['messages']");
  EXPECT_EQ(TextOf(file, "ESCAPED"), "a b$c");
  EXPECT_EQ(TextOf(file, "DOLLAR"), "$5 \"now\"");
  EXPECT_EQ(TextOf(file, "EMPTY"), "");
  EXPECT_EQ(ParseEnvFile(file, "f").at("IMAGE").line, 5);
}

TEST(EnvFile, FaultsNameFileAndLineAndNeverTheValue) {
  const std::pair<const char*, const char*> cases[] = {
      {"A=1\nB=$(id)\n", "config.env:2: B: commands are not run"},
      {"A=`id`\n", "config.env:1: A: put the value in quotes: it contains `"},
      {"A=\"x`id`\"\n", "commands are not run"},
      {"A=secret word\n", "put a value with spaces in quotes"},
      {"A='secret\n", "a quote is not closed"},
      {"A=\"secret\n", "a quote is not closed"},
      {"A=${B}\n", "${B} has no value on an earlier line"},
      {"A=${B:-secret}\n", "write ${B} without operators"},
      {"A=1\nA=2\n", "config.env:2: A already has a value on line 1"},
      {"word\n", "config.env:1: write NAME=value"},
      {"1A=b\n", "write NAME=value"},
      {"A=x;rm\n", "it contains ;"},
      {"A=\x01\n", "control character"},
      {"A=\xff\n", "not UTF-8"},
      {"A=x\\", "may not end with a backslash"},
  };
  for (const auto& [file, fault] : cases) {
    EXPECT_NE(FaultOf(file).find(fault), std::string::npos) << file << " → " << FaultOf(file);
    EXPECT_EQ(FaultOf(file).find("secret"), std::string::npos) << FaultOf(file);
  }
}

// Each line doubles the one before it.
TEST(EnvFile, ValuesThatGrowWithoutBoundAreRefused) {
  std::string file = "A0=0123456789012345\n";
  for (int i = 1; i <= 40; ++i) {
    const std::string last = "${A" + std::to_string(i - 1) + "}";
    file += "A" + std::to_string(i) + "=" + last + last + "\n";
  }

  EXPECT_NE(FaultOf(file).find("longer than 1 MiB"), std::string::npos);
}

}  // namespace
}  // namespace tandem::server
