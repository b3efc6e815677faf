#include "server/cli/remote/remote_flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "server/cli/data_dir.h"

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

ServerClient ClientOf(const RemoteFlags& flags) {
  const AddressWish wish{flags.url, flags.key_file, DataDirOr(flags.data_dir)};
  return ServerClient(
      ResolveAddress(wish, [](const char* name) -> const char* { return std::getenv(name); }));
}

}  // namespace tandem::server
