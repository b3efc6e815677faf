#include "engine/hub/options.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "engine/base/error.h"
#include "engine/hub/net_stream.h"
#include "tests/support/temporary_dir.h"

namespace tandem::engine {
namespace {

HubOptions Read(std::map<std::string, std::string> variables) {
  return HubOptionsFromEnvironment([&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  });
}

TEST(HubOptions, TheCacheIsWhereOtherToolsHaveIt) {
  EXPECT_EQ(Read({{"HOME", "/h"}}).cache_dir, "/h/.cache/huggingface/hub");
  EXPECT_EQ(Read({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}).cache_dir, "/x/huggingface/hub");
  EXPECT_EQ(Read({{"HOME", "/h"}, {"HF_HOME", "~/hf"}}).cache_dir, "/h/hf/hub");
  EXPECT_EQ(Read({{"HF_HOME", "/hf"}, {"HF_HUB_CACHE", "/c"}}).cache_dir, "/c");
  EXPECT_THROW(Read({}), Error);
}

TEST(HubOptions, TheTokenComesFromTheEnvironmentOrItsFile) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "token") << "hf_file\n";
  const std::string home = dir.path().string();

  EXPECT_EQ(Read({{"HF_HOME", home}}).token, "hf_file");
  EXPECT_EQ(Read({{"HF_HOME", home}, {"HF_TOKEN", " hf_env\n"}}).token, "hf_env");
  EXPECT_EQ(Read({{"HF_HOME", "/x"}, {"HF_TOKEN_PATH", home + "/token"}}).token, "hf_file");
  EXPECT_EQ(Read({{"HF_HOME", home}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}).token, "");
  EXPECT_EQ(Read({{"HF_HOME", home + "/none"}}).token, "");
}

TEST(HubOptions, FaultsNeverShowSecrets) {
  const struct {
    const char* name;
    const char* value;
  } cases[] = {
      {"HF_TOKEN", "secret\r\nX: y"},
      {"HF_TOKEN", "secret word"},
      {"HTTPS_PROXY", "socks5://user:secret@proxy:1080"},
      {"HTTP_PROXY", "http://user:secret@pro xy"},
      {"HF_ENDPOINT", "https://user:secret@hub.example"},
      {"HF_ENDPOINT", "https://hub.example/?secret"},
      {"HF_ENDPOINT", "https://hub.example/#secret"},
  };
  for (const auto& c : cases) {
    try {
      Read({{"HF_HOME", "/x"}, {c.name, c.value}});
      ADD_FAILURE() << c.name << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(c.name), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find("secret"), std::string::npos) << error.what();
    }
  }
}

TEST(HubOptions, OfflineIsSaidInSeveralWords) {
  EXPECT_TRUE(Read({{"HF_HOME", "/x"}, {"HF_HUB_OFFLINE", "1"}}).offline);
  EXPECT_TRUE(Read({{"HF_HOME", "/x"}, {"HF_HUB_OFFLINE", "true"}}).offline);
  EXPECT_FALSE(Read({{"HF_HOME", "/x"}, {"HF_HUB_OFFLINE", "0"}}).offline);
  EXPECT_EQ(Read({{"HF_HOME", "/x"}, {"HF_ENDPOINT", "http://m:8/hf//"}}).endpoint,
            "http://m:8/hf");
  EXPECT_EQ(Read({{"HF_HOME", "/x"}}).endpoint, "https://huggingface.co");
}

TEST(HubOptions, TheTimeoutIsANumberOfSeconds) {
  EXPECT_EQ(Read({{"HF_HOME", "/x"}, {"HF_HUB_DOWNLOAD_TIMEOUT", "7"}}).idle_timeout,
            std::chrono::seconds(7));
  for (const char* text : {"0", "-1", "3601", "10s", "1.5", "soon", " 1", "99999999999"}) {
    try {
      Read({{"HF_HOME", "/x"}, {"HF_HUB_DOWNLOAD_TIMEOUT", text}});
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("HF_HUB_DOWNLOAD_TIMEOUT"), std::string::npos);
    }
  }
}

TEST(Proxy, IsChosenByScheme) {
  const Url https = *ParseUrl("https://hub.example/");
  const Url http = *ParseUrl("http://hub.example/");

  EXPECT_EQ(ProxyFor(https, "http://s:1", "http://p:2", "")->host, "s");
  EXPECT_EQ(ProxyFor(http, "http://s:1", "http://p:2", "")->host, "p");
  EXPECT_FALSE(ProxyFor(https, "", "http://p:2", "").has_value());
}

TEST(Proxy, IsNotUsedForTheHostsOfNoProxy) {
  const auto is_direct = [](const char* url, const char* no_proxy) {
    return !ProxyFor(*ParseUrl(url), "http://s:1", "http://p:2", no_proxy).has_value();
  };
  EXPECT_TRUE(is_direct("https://hub.example/", "*"));
  EXPECT_TRUE(is_direct("https://hub.example/", "other, HUB.example"));
  EXPECT_TRUE(is_direct("https://a.hub.example/", ".hub.example"));
  EXPECT_TRUE(is_direct("https://a.hub.example/", "hub.example"));
  EXPECT_TRUE(is_direct("http://127.0.0.1:8080/", "127.0.0.1:8080"));
  EXPECT_TRUE(is_direct("http://[::1]:8080/", "::1"));
  EXPECT_FALSE(is_direct("http://127.0.0.1:8081/", "127.0.0.1:8080"));
  EXPECT_FALSE(is_direct("https://evilhub.example/", "hub.example"));
  EXPECT_FALSE(is_direct("https://hub.example/", "a.hub.example,,"));
}

TEST(Proxy, CredentialsAreDecodedAndEncoded) {
  EXPECT_EQ(ProxyAuthorization(*ParseUrl("http://us%40er:p%3Aw@proxy:1")),
            "Basic dXNAZXI6cDp3");  // "us@er:p:w"
  EXPECT_EQ(ProxyAuthorization(*ParseUrl("http://proxy:1")), "");
}

}  // namespace
}  // namespace tandem::engine
