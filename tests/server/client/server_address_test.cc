#include "server/client/server_address.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "engine/base/attempt.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

using Variables = std::map<std::string, std::string>;

ServerAddress Resolve(const AddressWish& wish, const Variables& variables = {}) {
  return ResolveAddress(wish, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string FaultOfUrl(const std::string& url) {
  const auto error = ErrorOf([&] { Resolve({.url = url}); });
  return error ? error->what() : "";
}

TEST(ServerAddress, TheFlagWinsOverTheVariableAndThatOverTheDefault) {
  EXPECT_EQ(Resolve({}).url, "http://127.0.0.1:8080");
  EXPECT_EQ(Resolve({}, {{"TANDEM_URL", "http://a:1"}}).url, "http://a:1");
  EXPECT_EQ(Resolve({.url = "https://b"}, {{"TANDEM_URL", "http://a:1"}}).url, "https://b");
}

TEST(ServerAddress, APathOfAGatewayStaysAndV1GoesAway) {
  EXPECT_EQ(Resolve({.url = "http://h:1/gateway/v1/"}).url, "http://h:1/gateway");
  EXPECT_EQ(Resolve({.url = "http://h:1/v1"}).url, "http://h:1");
  EXPECT_EQ(Resolve({.url = "http://[::1]:9000/"}).url, "http://[::1]:9000");
}

TEST(ServerAddress, ABadUrlIsNamedSafely) {
  EXPECT_NE(FaultOfUrl("localhost:8080").find("http://127.0.0.1:8080"), std::string::npos);
  EXPECT_NE(FaultOfUrl("ftp://x").find("'ftp://x'"), std::string::npos);
  EXPECT_NE(FaultOfUrl("http://x/?key=1").find("query"), std::string::npos);
  EXPECT_NE(FaultOfUrl("http://user:secret@x").find("--key-file"), std::string::npos);
  EXPECT_EQ(FaultOfUrl("http://\x1b[2J").find('\x1b'), std::string::npos);
}

TEST(ServerAddress, TheAdminKeyOfTheDataDirectoryGoesToThisMachineOnly) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "admin.key") << "own-key\n";
  EXPECT_EQ(Resolve({.data_dir = dir.path()}).admin_key, "own-key");
  EXPECT_EQ(Resolve({.url = "http://localhost:1", .data_dir = dir.path()}).admin_key, "own-key");
  EXPECT_EQ(Resolve({.url = "http://example.org", .data_dir = dir.path()}).admin_key, "");
  EXPECT_EQ(Resolve({.url = "http://127.example.org", .data_dir = dir.path()}).admin_key, "");
  EXPECT_EQ(Resolve({.data_dir = dir.path()}, {{"TANDEM_ADMIN_KEY", "given"}}).admin_key, "given");
  EXPECT_EQ(Resolve({.data_dir = dir.path()}).api_key, "");
}

TEST(ServerAddress, AKeyFileReplacesAllOtherKeys) {
  const tests::TemporaryDir dir;
  std::ofstream(dir / "key") << "from-file\r\n";
  const ServerAddress address =
      Resolve({.key_file = dir / "key"}, {{"TANDEM_API_KEY", "a"}, {"TANDEM_ADMIN_KEY", "b"}});
  EXPECT_EQ(address.api_key, "from-file");
  EXPECT_EQ(address.admin_key, "");
}

TEST(ServerAddress, AKeyCannotSmuggleAHeader) {
  EXPECT_THROW(Resolve({}, {{"TANDEM_API_KEY", "a\r\nX: y"}}), Error);
  const tests::TemporaryDir dir;
  std::ofstream(dir / "key") << "\n";
  EXPECT_THROW(Resolve({.key_file = dir / "key"}), Error);
}

}  // namespace
}  // namespace tandem::server
