#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "server/app/app.h"
#include "server/cli/model_options.h"
#include "server/client/server_address.h"

namespace tandem::server {

// What `tandem run` serves to itself.
struct LocalModel {
  ModelArgument model;
  std::vector<AdapterSource> adapters;  // at most one, which then answers
  std::string id() const { return adapters.empty() ? NameOf(model) : adapters.front().name; }
};

// Finds the model that a word names: a file or directory, an embedded name, ORG/NAME of the hub,
// the id of a finished job in the data directory, or the name of a fine-tuned model there. Throws
// kNotFound, and kFailedPrecondition for a job without a model.
LocalModel FindLocalModel(const std::string& word, const std::filesystem::path& data_dir);

// A server inside this process for this process alone: on a free port of the loopback interface,
// with a random key, without a data directory. So a local model answers by the same code as a
// remote one. One thread.
class LocalServer {
 public:
  // Loads the model. Throws what loading throws.
  LocalServer(const LocalModel& model, const ModelFlags& flags);
  ~LocalServer();
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  ServerAddress address() const;

 private:
  const std::string key_;
  std::unique_ptr<App> app_;
};

}  // namespace tandem::server
