#include "server/cli/model_options.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "config/app_config.h"
#include "engine/io/atomic_write.h"
#include "server/models/load_model.h"

namespace tandem::server {

std::filesystem::path CacheDir() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0') {
    return std::filesystem::path(xdg) / "tandem";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return std::filesystem::path(home) / ".cache" / "tandem";
  }
  return {};
}

void AddModelFlags(CLI::App& command, ModelFlags& flags) {
  command
      .add_option("--dtype", flags.dtype,
                  "weight type: auto, f32 or bf16 compute in that type; int8 or int4 quantise to "
                  "blocks and compute in bf16; auto keeps the blocks of a GGUF file")
      ->check(CLI::IsMember({"auto", "f32", "bf16", "int8", "int4"}))
      ->capture_default_str();
  command.add_option("--threads", flags.threads, "compute threads (0: one per physical core)")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.add_option("--memory", flags.memory,
                     "budget for weights, KV cache and scratch, such as 8G (default: 80 % of the "
                     "available memory)");
  command.add_option("--cache-size", flags.cache_size,
                     "most bytes of the packed-weight cache, such as 64G");
  command
      .add_option("--max-model-len", flags.max_model_len,
                  "context limit in tokens (0: the model's own)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30))
      ->capture_default_str();
  command.add_option("--chat-template", flags.chat_template_file,
                     "file with a Jinja chat template to use instead of the model's");
}

engine::EngineOptions ToEngineOptions(const ModelFlags& flags) {
  engine::EngineOptions options;
  SetDType(flags.dtype, options);
  options.threads = flags.threads;
  options.cache_dir = CacheDir();
  options.max_model_len = flags.max_model_len;
  if (!flags.memory.empty()) options.memory_bytes = config::ParseBytes(flags.memory, "--memory");
  if (!flags.cache_size.empty()) {
    options.cache_limit_bytes = config::ParseBytes(flags.cache_size, "--cache-size");
  }
  return options;
}

std::string ReadChatTemplate(const ModelFlags& flags) {
  if (flags.chat_template_file.empty()) return {};
  return engine::ReadWholeFile(flags.chat_template_file, 1 << 20);
}

}  // namespace tandem::server
