#include "server/jobs/clean_environment.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>

namespace tandem::server {
namespace {

struct SecretVariable {
  std::string_view name;
  EnvironmentReader first;  // this reader and all after it do not get the variable
};

// The names of keys go with the keys: one without the other would be refused.
constexpr SecretVariable kSecretVariables[] = {
    {"TANDEM_API_KEY", EnvironmentReader::kJob},
    {"TANDEM_ADMIN_KEY", EnvironmentReader::kJob},
    {"TANDEM_METRICS_KEY", EnvironmentReader::kJob},
    {"TANDEM_TEACHER_KEY", EnvironmentReader::kJob},
    {"PGPASSWORD", EnvironmentReader::kJob},
    {"HF_TOKEN", EnvironmentReader::kTool},
    {"HUGGING_FACE_HUB_TOKEN", EnvironmentReader::kTool},
    {"HUGGINGFACE_TOKEN", EnvironmentReader::kTool},
    {"AWS_ACCESS_KEY_ID", EnvironmentReader::kScheduler},
    {"AWS_SECRET_ACCESS_KEY", EnvironmentReader::kScheduler},
    {"AWS_SESSION_TOKEN", EnvironmentReader::kScheduler},
    {"GS_ACCESS_KEY_ID", EnvironmentReader::kScheduler},
    {"GS_SECRET_ACCESS_KEY", EnvironmentReader::kScheduler},
};

}  // namespace

bool IsHiddenFrom(EnvironmentReader reader, std::string_view name) {
  return std::any_of(
      std::begin(kSecretVariables), std::end(kSecretVariables),
      [&](const SecretVariable& secret) { return secret.name == name && reader >= secret.first; });
}

std::vector<char*> CleanEnvironment(EnvironmentReader reader) {
  std::vector<char*> out;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!IsHiddenFrom(reader, text.substr(0, text.find('=')))) out.push_back(*entry);
  }
  out.push_back(nullptr);
  return out;
}

}  // namespace tandem::server
