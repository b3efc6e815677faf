#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "engine/base/error.h"
#include "server/cli/verbs.h"
#include "server/deploy/env_file.h"
#include "server/deploy/render.h"
#include "server/deploy/secret_scan.h"
#include "server/deploy/variables.h"
#include "server/jobs/exit_codes.h"

namespace tandem::server {
namespace {

struct DeployFlags {
  std::string env;
  std::string out = "deploy";
  std::string secret;
  std::string check;
};

int Render(const DeployFlags& flags) {
  const ResolvedDeploy resolved = ResolveDeploy(ReadEnvFile(flags.env), flags.env);
  const std::vector<std::string> files = RenderDeploy(resolved.values, flags.out);
  for (const std::string& name : resolved.derived) {
    std::printf("%s=%s\n", name.c_str(), resolved.values.find(name)->second.c_str());
  }
  for (const std::string& name : resolved.unused) {
    std::fprintf(stderr, "tandem: no template uses %s\n", name.c_str());
  }
  for (const std::string& file : files) {
    std::fprintf(stderr, "wrote %s/%s\n", flags.out.c_str(), file.c_str());
  }
  return kExitDone;
}

int PrintSecret(const DeployFlags& flags) {
  const std::string secret = SecretOf(ReadEnvFile(flags.env), flags.env, flags.secret);
  if (std::fwrite(secret.data(), 1, secret.size(), stdout) != secret.size() ||
      std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kIo, "could not write the secret to standard output");
  }
  return kExitDone;
}

int Check(const DeployFlags& flags) {
  const std::vector<FoundSecret> found = ScanForSecrets(flags.check);
  for (const FoundSecret& secret : found) {
    std::printf("%s:%lld: %s\n", secret.file.c_str(), static_cast<long long>(secret.line),
                secret.what.c_str());
  }
  if (found.empty()) return kExitDone;
  std::fprintf(stderr, "tandem: %zu secrets\n", found.size());
  return kExitFailed;
}

int ListVariables() {
  for (const DeployVariable& variable : DeployVariables()) {
    std::string value(variable.fallback);
    if (variable.is_required) value = "(required)";
    if (variable.rule == DeployRule::kSecret) value = "(secret)";
    const std::string alias =
        variable.alias.empty() ? "" : " (or " + std::string(variable.alias) + ")";
    std::printf("%-24s %-50s %s%s\n", std::string(variable.name).c_str(), value.c_str(),
                std::string(variable.about).c_str(), alias.c_str());
  }
  return kExitDone;
}

}  // namespace

void AddDeploy(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<DeployFlags>();
  command.require_subcommand(1);
  const auto add_env = [&](CLI::App& verb) {
    verb.add_option("--env", flags->env, "file of NAME=value lines")->required()->type_name("FILE");
  };

  CLI::App& render = *command.add_subcommand(
      "render", "write the Kubernetes, Terraform and container files of a deployment");
  add_env(render);
  render.add_option("--out", flags->out, "directory to write; a rendering there is replaced")
      ->type_name("DIR")
      ->capture_default_str();
  render.callback([flags, &exit_code] { exit_code = Render(*flags); });

  CLI::App& variables =
      *command.add_subcommand("variables", "list the variables of config.env with their defaults");
  variables.callback([&exit_code] { exit_code = ListVariables(); });

  CLI::App& secret =
      *command.add_subcommand("secret", "print a secret of config.env, for a pipe to kubectl");
  add_env(secret);
  secret.add_option("name", flags->secret, "HUGGINGFACE_TOKEN")->required();
  secret.callback([flags, &exit_code] { exit_code = PrintSecret(*flags); });

  CLI::App& sanitize = *command.add_subcommand(
      "sanitize", "find secrets in a directory, by file and line; exit with 1 if there are any");
  sanitize.add_option("--check", flags->check, "directory or file to scan")
      ->required()
      ->type_name("DIR");
  sanitize.callback([flags, &exit_code] { exit_code = Check(*flags); });
}

}  // namespace tandem::server
