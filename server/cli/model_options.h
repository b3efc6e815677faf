#pragma once

#include <filesystem>
#include <string>

#include "engine/api/options.h"

namespace CLI {
class App;
}

namespace tandem::server {

// The flags that every verb which opens a model shares.
struct ModelFlags {
  std::string dtype = "auto";
  int threads = 0;
  std::string memory;
  std::string cache_size;
  int64_t max_model_len = 0;
  std::string chat_template_file;
};

void AddModelFlags(CLI::App& command, ModelFlags& flags);
// Where packed weights are kept: shared by all processes of the user. Empty: nowhere.
std::filesystem::path CacheDir();
// Throws kInvalidArgument naming the flag.
engine::EngineOptions ToEngineOptions(const ModelFlags& flags);
// The text of --chat-template; empty when it was not given.
std::string ReadChatTemplate(const ModelFlags& flags);

}  // namespace tandem::server
