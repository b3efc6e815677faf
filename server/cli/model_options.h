#pragma once

#include <filesystem>
#include <string>

#include "engine/api/options.h"

namespace CLI {
class App;
}

namespace tandem::server {

// Flags shared by the verbs that open a model.
struct ModelFlags {
  std::string dtype = "auto";
  int threads = 0;
  std::string memory;
  std::string cache_size;
  int64_t max_model_len = 0;
  std::string chat_template_file;
};

void AddModelFlags(CLI::App& command, ModelFlags& flags);
// Directory of the packed weights, shared by all processes of the user. Empty: no cache, because
// neither XDG_CACHE_HOME nor HOME is set.
std::filesystem::path CacheDir();
// Throws kInvalidArgument with the name of a bad flag.
engine::EngineOptions ToEngineOptions(const ModelFlags& flags);
// The text of --chat-template; empty if it was not given.
std::string ReadChatTemplate(const ModelFlags& flags);

}  // namespace tandem::server
