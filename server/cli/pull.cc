#include "engine/hub/pull.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/log.h"
#include "server/cli/progress/shown_progress.h"
#include "server/cli/verbs.h"
#include "server/jobs/exit_codes.h"

namespace tandem::server {
namespace {

struct PullFlags {
  std::string model;
  int connections = engine::HubOptions().connections;
  std::string log_level = "info";
  ProgressFlags progress;
};

// During a pull, signals stay pending: the pull polls them and stops in order.
void BlockStopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int RunPull(const PullFlags& flags) {
  ConfigureLog(flags.log_level, LogFormat::kText);
  const std::optional<engine::HubReference> reference = engine::ParseHubReference(flags.model);
  if (!reference) {
    throw Error(ErrorCode::kInvalidArgument,
                "'" + flags.model +
                    "' is not a model name of the hub: expected ORG/NAME, ORG/NAME@REVISION, or "
                    "for a GGUF file ORG/NAME:FILE.gguf or ORG/NAME:Q4_K_M");
  }
  engine::HubOptions options = engine::HubOptionsFromEnvironment();
  options.connections = flags.connections;
  BlockStopSignals();
  const ShownProgress shown(flags.progress);
  std::stop_source stop;
  const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
    const std::filesystem::path path = engine::PullModel(
        *reference, options, engine::StoppingOnSignals(nullptr, stop), stop.get_token());
    std::printf("%s\n", path.c_str());
  });
  if (cancelled) {
    std::fprintf(stderr, "tandem: interrupted; the same command resumes\n");
    return kExitTryAgain;
  }
  return 0;
}

}  // namespace

void AddPull(CLI::App& command, int& exit_code) {
  const auto flags = std::make_shared<PullFlags>();
  command
      .add_option("model", flags->model,
                  "ORG/NAME, ORG/NAME@REVISION (branch, tag or commit), or for a GGUF file "
                  "ORG/NAME:FILE.gguf or ORG/NAME:Q4_K_M")
      ->required();
  command.add_option("--connections", flags->connections, "number of parallel downloads")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  AddProgressFlags(command, flags->progress);
  command.add_option("--log-level", flags->log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  command.footer(
      "Prints the path of the model in the cache, which Hugging Face's own tools share.\n"
      "Skips files in the cache. The same command resumes an interrupted download (exit code "
      "75).\n\n"
      "Environment:\n"
      "  HF_HUB_CACHE, HF_HOME    the cache; default ~/.cache/huggingface/hub\n"
      "  HF_TOKEN, HF_TOKEN_PATH  token for gated and private models; default $HF_HOME/token\n"
      "  HF_HUB_DISABLE_IMPLICIT_TOKEN=1\n"
      "                           send no token\n"
      "  HF_ENDPOINT              the hub, or a mirror; default https://huggingface.co\n"
      "  HF_HUB_OFFLINE=1         use the cache only\n"
      "  HF_HUB_DOWNLOAD_TIMEOUT  seconds without a byte before a retry; default 10\n"
      "  HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE, SSL_CERT_DIR");
  command.callback([flags, &exit_code] { exit_code = RunPull(*flags); });
}

}  // namespace tandem::server
