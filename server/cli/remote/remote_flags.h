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

// Adds a verb with these flags and, unless `job_id` is null, the required argument JOB. The flags
// and the id outlive the verb.
CLI::App* AddRemoteVerb(CLI::App& command, const std::string& name, const std::string& effect,
                        RemoteFlags& flags, std::string* job_id);

// Throws kInvalidArgument or kIo.
ServerClient ClientOf(const RemoteFlags& flags);

// Posts an empty object to a job's `path`, such as its cancellation, and prints the job's status.
void ActOnRemoteJob(const RemoteFlags& flags, const std::string& job_id, const std::string& path);

}  // namespace tandem::server
