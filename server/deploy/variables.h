#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/deploy/env_file.h"

namespace tandem::server {

// The rule that a value must obey. Templates quote values as well, so that a rule with a gap cannot
// change the structure of a file.
enum class DeployRule {
  kName,    // a DNS label: lower-case letters, digits, dashes; at most 50 characters
  kImage,   // registry/name:tag
  kPath,    // an absolute path without "." and ".."
  kCount,   // 1 to 1,000,000,000
  kSize,    // a quantity of Kubernetes: 8, 500m, 16Gi
  kText,    // one printable line of at most 4,096 bytes
  kSecret,  // never rendered
};

struct DeployVariable {
  std::string_view name;
  std::string_view alias;  // another name of the same value; empty: none
  DeployRule rule;
  // May name other variables: "${REGISTRY}/tandem-server:${IMAGE_TAG}". Ignored if is_required.
  std::string_view fallback;
  std::string_view about;
  bool is_required = false;
};
std::span<const DeployVariable> DeployVariables();

// Values by canonical name, without secrets.
using DeployValues = std::map<std::string, std::string, std::less<>>;

struct ResolvedDeploy {
  DeployValues values;
  std::vector<std::string> derived;  // names whose value came from the fallback
  std::vector<std::string> unused;   // accepted names that no template uses
};

// Checks the values of `file` and derives the missing ones. Throws kInvalidArgument with every
// fault: a missing value, an unknown name, a placeholder that was not replaced (YOUR_…, your-…,
// <…>), or a value that breaks its rule. Faults name the variable, file and line, never a value.
ResolvedDeploy ResolveDeploy(const EnvValues& given, const std::string& file);

// The value of one variable, secrets included; from its own line or from the file that
// NAME_FILE names. Throws as ResolveDeploy, and kNotFound if there is none.
std::string SecretOf(const EnvValues& given, const std::string& file, std::string_view name);

}  // namespace tandem::server
