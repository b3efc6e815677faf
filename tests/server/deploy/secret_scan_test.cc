#include "server/deploy/secret_scan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "engine/base/error.h"
#include "tests/support/temporary_dir.h"

namespace tandem::server {
namespace {

// Parts, so that this file passes a scan itself.
std::string Token(const char* prefix, size_t length) {
  return prefix + std::string(length / 2, 'A') + std::string(length - length / 2, '7');
}

TEST(SecretScan, FindsTwelvePlantedSecretsByFileAndLine) {
  const tests::TemporaryDir dir;
  std::filesystem::create_directories(dir.path() / "a" / ".git");
  const std::string planted[] = {
      "token: " + Token("hf_", 34),
      "key = '" + Token("sk-", 48) + "'",
      Token("AKIA", 16),
      std::string("-----BEGIN RSA ") + "PRIVATE KEY-----",
      "DB_PASSWORD=" + Token("", 12),
      "  \"api_key\": \"" + Token("x", 20) + "\",",
      "- {name: HF_TOKEN, value: " + Token("q", 20) + "}",
      std::string("postgres://tandem:") + Token("", 8) + "@db:5432/tandem",
      Token("ghp_", 36),
      std::string("Authorization: Bearer ") + "eyJ" + Token("", 20) + "." + "eyJ" + Token("", 20),
      Token("AIza", 35),
      "client-key-data: " + Token("LS0t", 40),
  };
  {
    std::ofstream file(dir.path() / "a" / "values.txt");
    for (const std::string& line : planted) file << "clean\n" << line << "\n";
    std::ofstream(dir.path() / "a" / ".git" / "config") << planted[0];
    std::ofstream(dir.path() / "b.tfstate") << "{}";
  }

  const std::vector<FoundSecret> found = ScanForSecrets(dir.path());

  ASSERT_EQ(found.size(), std::size(planted) + 1);
  for (size_t i = 0; i < std::size(planted); ++i) {
    EXPECT_EQ(found[i].file, (dir.path() / "a" / "values.txt").string());
    EXPECT_EQ(found[i].line, static_cast<int64_t>(2 * i + 2)) << found[i].what;
    EXPECT_EQ(found[i].what.find("AAAA"), std::string::npos);
  }
  EXPECT_EQ(found.back().file, (dir.path() / "b.tfstate").string());
}

TEST(SecretScan, AValueBelowTheNameOfASecretIsFound) {
  const std::string value = "  value: " + Token("q", 20);

  EXPECT_EQ(SecretsInLine(value, "- name: HF_TOKEN").size(), 1u);
  EXPECT_TRUE(SecretsInLine(value, "- name: MODEL_NAME").empty());
  EXPECT_TRUE(SecretsInLine("  value: /run/secrets/token", "- name: HF_TOKEN").empty());
}

TEST(SecretScan, PlaceholdersPathsAndCodeAreClean) {
  for (const char* line :
       {"HUGGINGFACE_TOKEN=YOUR_HUGGINGFACE_TOKEN", "HF_TOKEN_PATH=/run/secrets/token",
        "API_KEY=${API_KEY}", "token: \"\"", "password: {{PASSWORD}}", "TOKEN=\"$(cat file)\"",
        "--env TANDEM_API_KEY=choose-a-key", "secretName: huggingface-token", "eos_token: \"</s>\"",
        "postgres://tandem:PASSWORD@db/tandem", "http://host:8080/a@b",
        "task-aaaaaaaaaaaaaaaaaaaaaaaa", "risk-abcdefghijklmnopqrstuvwxyz", "name: HF_TOKEN_PATH",
        "POSTGRES_PASSWORD_FILE: /run/x"}) {
    EXPECT_TRUE(SecretsInLine(line).empty()) << line << ": " << SecretsInLine(line).front();
  }
}

TEST(SecretScan, ASecretThatCrossesTwoReadsIsFound) {
  const tests::TemporaryDir dir;
  constexpr size_t kPiece = 256 * 1024;
  for (const size_t before : {kPiece - 20, kPiece - 1, kPiece, 3 * kPiece - 7}) {
    std::ofstream(dir.path() / "long") << std::string(before, ' ') << Token("hf_", 34) << "\n";

    const std::vector<FoundSecret> found = ScanForSecrets(dir.path());

    ASSERT_EQ(found.size(), 1u) << before;
    EXPECT_EQ(found[0].line, 1);
  }
}

TEST(SecretScan, BinaryFilesAndLinksAreSkippedAndAMissingTreeIsAnError) {
  const tests::TemporaryDir dir;
  std::ofstream(dir.path() / "binary") << std::string(1, '\0') << Token("hf_", 34);
  std::filesystem::create_symlink("/proc/self/environ", dir.path() / "link");

  EXPECT_TRUE(ScanForSecrets(dir.path()).empty());
  EXPECT_THROW(ScanForSecrets(dir.path() / "gone"), Error);
}

}  // namespace
}  // namespace tandem::server
