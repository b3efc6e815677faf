#pragma once

#include <string>

#include "server/client/server_client.h"

namespace CLI {
class App;
}

namespace tandem::server {

// Flags of the verbs that speak to a server.
struct RemoteFlags {
  std::string url;
  std::string key_file;
  std::string data_dir;
  bool is_json = false;
};

// Adds --url, --key-file, --data-dir and --json.
void AddRemoteFlags(CLI::App& command, RemoteFlags& flags);

// Throws kInvalidArgument or kIo.
ServerClient ClientOf(const RemoteFlags& flags);

}  // namespace tandem::server
