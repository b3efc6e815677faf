#include "config/app_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <type_traits>

#include "engine/base/error.h"
#include "tests/support/paths.h"
#include "tests/support/temporary_dir.h"

namespace tandem::config {
namespace {

// Counts the fields of a struct: the largest number of initialisers that it accepts.
struct Anything {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): must convert implicitly
};
template <class T, class... Initialisers>
constexpr size_t CountFields() {
  if constexpr (requires { T{std::declval<Initialisers>()..., Anything()}; }) {
    return CountFields<T, Initialisers..., Anything>();
  } else {
    return sizeof...(Initialisers);
  }
}

class AppConfigTest : public testing::Test {
 protected:
  std::string Write(const std::string& text) {
    const std::string path = (directory_.path() / "tandem.yaml").string();
    std::ofstream(path) << text;
    return path;
  }
  static std::string FaultsOf(const ConfigSources& sources) {
    try {
      LoadConfig(sources);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      return error.what();
    }
    return "";
  }

  tests::TemporaryDir directory_;
};

TEST_F(AppConfigTest, EveryFieldHasOneKeyAndEveryKeyOneField) {
  EXPECT_EQ(CountFields<AppConfig>(), ConfigKeys().size());
  std::set<std::string_view> names;
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    for (const ConfigKey& other : ConfigKeys()) {
      EXPECT_TRUE(&key == &other || key.member != other.member) << key.name << " " << other.name;
    }
  }
}

TEST_F(AppConfigTest, AnAllowedHostIsANameWithoutSchemeAndPort) {
  for (const char* bad : {"http://a.example", "a.example:80", "a b", "a/b", "*.example", ""}) {
    ConfigSources sources;
    sources.flags["allowed-host"] = {"good.example", bad};
    EXPECT_NE(FaultsOf(sources).find("--allowed-host must"), std::string::npos) << bad;
  }
  ConfigSources sources;
  sources.flags["allowed-host"] = {"a-1.example", "10.0.0.1", "[2001:db8::1]", "::1", "*"};
  EXPECT_EQ(FaultsOf(sources), "");
}

TEST_F(AppConfigTest, TheReadmeShowsTheTable) {
  std::ifstream file(tests::SourceDir() / "config" / "README.md");
  std::ostringstream text;
  text << file.rdbuf();

  EXPECT_NE(text.str().find(ConfigTable()), std::string::npos)
      << "config/README.md must hold exactly:\n"
      << ConfigTable();
}

TEST_F(AppConfigTest, FlagsWinOverTheEnvironmentThatWinsOverTheFile) {
  ConfigSources sources;
  EXPECT_EQ(LoadConfig(sources).values.log_level, "info");

  sources.file = Write("log-level: warn\nmax-seqs: 3\n");
  EXPECT_EQ(LoadConfig(sources).values.log_level, "warn");
  EXPECT_EQ(LoadConfig(sources).values.max_seqs, 3);

  sources.environment = [](const char* name) {
    return std::string_view(name) == "TANDEM_LOG_LEVEL" ? "error" : nullptr;
  };
  EXPECT_EQ(LoadConfig(sources).values.log_level, "error");

  sources.flags["log-level"] = {"debug"};
  const LoadedConfig loaded = LoadConfig(sources);
  EXPECT_EQ(loaded.values.log_level, "debug");
  EXPECT_EQ(loaded.values.max_seqs, 3);
  EXPECT_EQ(loaded.origins.at("log-level"), "--log-level");
  EXPECT_EQ(loaded.origins.at("max-seqs"), sources.file + ":2");
}

TEST_F(AppConfigTest, ReadsEveryKindOfValue) {
  ConfigSources sources;
  sources.file = Write(
      "# comment\nmodel: [a, NAME=b]\nserved-model-name: one\ninsecure: true\nmax-body: 8M\n"
      "queue-timeout: 2.5\nhost: ::1\nmemory:\n");

  const AppConfig config = LoadConfig(sources).values;

  EXPECT_EQ(config.model, (std::vector<std::string>{"a", "NAME=b"}));
  EXPECT_EQ(config.served_model_name, std::vector<std::string>{"one"});
  EXPECT_TRUE(config.insecure);
  EXPECT_EQ(config.max_body.n, 8 << 20);
  EXPECT_EQ(config.queue_timeout.s, 2.5);
  EXPECT_EQ(config.host, "::1");
  EXPECT_EQ(config.memory.n, 0);
}

TEST_F(AppConfigTest, AllFaultsComeInOneMessageWithTheirPlaces) {
  ConfigSources sources;
  sources.file = Write(
      "max-seq: 3\nport: 99999\ninsecure: maybe\nport: 1\nlog-format: [text]\n"
      "metrics-namespace: 1x\nchat-template: /absent/file\nmodel: {a: b}\n");
  sources.flags["max-queue"] = {"-1"};
  sources.flags["queue-timeout"] = {"nan"};

  const std::string faults = FaultsOf(sources);

  const std::string& file = sources.file;
  for (const std::string& expected :
       {std::string("10 faults"), file + ":1: unknown key 'max-seq'; did you mean 'max-seqs'?",
        file + ":2: port must be an integer from 0 to 65535, got '99999'",
        file + ":3: insecure must be true or false, got 'maybe'", file + ":4: port is given twice",
        file + ":5: log-format must be a value, not a list",
        file + ":6: metrics-namespace must be letters",
        file + ":7: chat-template does not exist, got '/absent/file'",
        file + ":8: model must be a value, not a mapping",
        std::string("--max-queue must be an integer from 1 to 1048576, got '-1'"),
        std::string("--queue-timeout must be a number of seconds from 0 to 86400, got 'nan'")}) {
    EXPECT_NE(faults.find(expected), std::string::npos) << expected << "\nin:\n" << faults;
  }
}

TEST_F(AppConfigTest, BrokenYamlIsAFaultWithItsLine) {
  ConfigSources sources;
  sources.file = Write("port: 1\nhost: [open\n");
  EXPECT_NE(FaultsOf(sources).find(sources.file + ":"), std::string::npos);
  sources.file = Write("- a\n- b\n");
  EXPECT_NE(FaultsOf(sources).find("must be a mapping"), std::string::npos);
  sources.file = Write("");
  EXPECT_EQ(FaultsOf(sources), "");
}

TEST_F(AppConfigTest, SecretsAreNeitherDescribedNorQuotedInFaults) {
  ConfigSources sources;
  sources.file = Write("admin-key: marker-1\napi-key: [marker-2, marker-3]\n");
  const std::string described = DescribeConfig(LoadConfig(sources));
  EXPECT_EQ(described.find("marker"), std::string::npos);
  EXPECT_NE(described.find("admin-key: \"(redacted)\"  # " + sources.file + ":1"),
            std::string::npos);

  sources.file = Write("admin-key: [marker-4]\n");
  EXPECT_EQ(FaultsOf(sources).find("marker"), std::string::npos);
}

TEST_F(AppConfigTest, WhatIsDescribedCanBeReadBack) {
  ConfigSources sources;
  sources.file = Write("model: [\"a \\\"b\\\"\", c]\nmax-body: 3M\ncors-origin: http://x\n");
  const std::string described = DescribeConfig(LoadConfig(sources));

  sources.file = Write(described);
  const AppConfig again = LoadConfig(sources).values;

  EXPECT_EQ(again.model, (std::vector<std::string>{"a \"b\"", "c"}));
  EXPECT_EQ(again.max_body.n, 3 << 20);
  EXPECT_EQ(again.cors_origin, "http://x");
  EXPECT_EQ(again.max_seqs, AppConfig().max_seqs);
}

TEST(ParseBytes, TakesUnitsAndNothingElse) {
  EXPECT_EQ(ParseBytes("512M", "x"), int64_t{512} << 20);
  EXPECT_EQ(ParseBytes("4GiB", "x"), int64_t{4} << 30);
  EXPECT_EQ(ParseBytes("1000", "x"), 1000);
  for (const char* bad : {"", "0", "-1", "4X", "1MM", "9999999999999T", "1 M"}) {
    EXPECT_THROW(ParseBytes(bad, "x"), Error) << bad;
  }
}

}  // namespace
}  // namespace tandem::config
