#include "server/cli/remote/remote_flags.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "server/cli/data_dir.h"
#include "server/cli/remote/table.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {

void AddRemoteFlags(CLI::App& command, RemoteFlags& flags) {
  command
      .add_option("--url", flags.url,
                  "the server, http or https (or TANDEM_URL; default: " +
                      std::string(kDefaultServerUrl) + ")")
      ->type_name("URL");
  command
      .add_option("--key-file", flags.key_file,
                  "file with a key of the server (or TANDEM_API_KEY, TANDEM_ADMIN_KEY)")
      ->type_name("FILE");
  command
      .add_option("--data-dir", flags.data_dir,
                  "data directory of a server on this machine: its admin.key is used")
      ->type_name("DIR");
  command.add_flag("--json", flags.is_json, "print JSON");
}

CLI::App* AddRemoteVerb(CLI::App& command, const std::string& name, const std::string& effect,
                        RemoteFlags& flags, std::string* job_id) {
  CLI::App* verb = command.add_subcommand(name, effect);
  AddRemoteFlags(*verb, flags);
  if (job_id != nullptr) {
    verb->add_option("job", *job_id, "id of the job")->required()->type_name("JOB");
  }
  return verb;
}

ServerClient ClientOf(const RemoteFlags& flags) {
  const AddressWish wish{flags.url, flags.key_file, DataDirOr(flags.data_dir)};
  return ServerClient(
      ResolveAddress(wish, [](const char* name) -> const char* { return std::getenv(name); }));
}

void ActOnRemoteJob(const RemoteFlags& flags, const std::string& job_id, const std::string& path) {
  const auto job = ClientOf(flags).Post(path, nlohmann::ordered_json::object());
  if (flags.is_json) {
    PrintJson(job);
    return;
  }
  std::printf("%s: %s\n", VisibleLine(job_id, 200).c_str(),
              VisibleLine(CellOf(job, "status"), 200).c_str());
}

}  // namespace tandem::server
