#include "server/jobs/clean_environment.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <string>

namespace tandem::server {
namespace {

TEST(CleanEnvironment, EachReaderGetsFewerSecrets) {
  const auto hidden = [](const char* name) {
    std::string from;
    if (IsHiddenFrom(EnvironmentReader::kJob, name)) from += "job ";
    if (IsHiddenFrom(EnvironmentReader::kTool, name)) from += "tool ";
    if (IsHiddenFrom(EnvironmentReader::kScheduler, name)) from += "scheduler";
    return from;
  };
  for (const char* name :
       {"TANDEM_API_KEY", "TANDEM_ADMIN_KEY", "TANDEM_METRICS_KEY", "PGPASSWORD"}) {
    EXPECT_EQ(hidden(name), "job tool scheduler") << name;
  }
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_TOKEN"}) {
    EXPECT_EQ(hidden(name), "tool scheduler") << name;
  }
  for (const char* name : {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID",
                           "GS_SECRET_ACCESS_KEY"}) {
    EXPECT_EQ(hidden(name), "scheduler") << name;
  }
  for (const char* name : {"PATH", "HF_TOKEN_PATH", "TANDEM_FORCE_ISA", "AWS_REGION", ""}) {
    EXPECT_EQ(hidden(name), "") << name;
  }
}

TEST(CleanEnvironment, KeepsTheOtherEntriesAndEndsWithANull) {
  ::setenv("TANDEM_METRICS_KEY", "marker", 1);
  ::setenv("TANDEM_METRICS_KEY_LIKE", "kept", 1);
  const std::vector<char*> entries = CleanEnvironment(EnvironmentReader::kJob);
  ::unsetenv("TANDEM_METRICS_KEY");
  ::unsetenv("TANDEM_METRICS_KEY_LIKE");

  ASSERT_EQ(entries.back(), nullptr);
  const auto has = [&](const std::string& text) {
    return std::any_of(entries.begin(), entries.end() - 1,
                       [&](const char* entry) { return text == entry; });
  };
  EXPECT_TRUE(has("TANDEM_METRICS_KEY_LIKE=kept"));
  EXPECT_FALSE(has("TANDEM_METRICS_KEY=marker"));
}

}  // namespace
}  // namespace tandem::server
