#pragma once

#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "server/handlers/model_registry.h"

namespace tandem::server {

// The aliases of a server, as its registry has them, kept in a JSON file (`{"prod": "ft:…"}`) that
// is replaced as a whole: what a change has answered is there after a crash. Any thread.
// Without a file they last as long as the server.
class AliasBook {
 public:
  // Reads the file, if there is one. A target need not be served yet; a name that a model has by
  // now is left out with a warning. Throws kDataLoss for a file that is none of ours.
  AliasBook(ModelRegistry& registry, std::filesystem::path file);

  // As ModelRegistry's, and kIo where it cannot be written down: then nothing has changed.
  std::optional<std::string> Set(const std::string& name, const std::string& target);
  std::optional<std::string> Remove(const std::string& name);

 private:
  void Write() const;

  ModelRegistry& registry_;
  const std::filesystem::path file_;
  std::mutex mutex_;  // one change at a time
};

}  // namespace tandem::server
