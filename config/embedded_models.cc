#include "config/embedded_models.h"

#include <array>
#include <cstddef>
#include <map>
#include <string>

#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/embed.h"
#include "engine/io/atomic_write.h"
#include "engine/io/posix_file.h"

TANDEM_EMBED(tandem_stories_config, TANDEM_MODELS_DIR "/tandem-stories/config.json");
TANDEM_EMBED(tandem_stories_generation_config,
             TANDEM_MODELS_DIR "/tandem-stories/generation_config.json");
TANDEM_EMBED(tandem_stories_model, TANDEM_MODELS_DIR "/tandem-stories/model.safetensors");
TANDEM_EMBED(tandem_stories_tokenizer, TANDEM_MODELS_DIR "/tandem-stories/tokenizer.json");
TANDEM_EMBED(tandem_stories_tokenizer_config,
             TANDEM_MODELS_DIR "/tandem-stories/tokenizer_config.json");

namespace tandem::config {
namespace {

constexpr std::array<std::string_view, 1> kNames = {kDefaultModel};

using Bytes = std::span<const std::byte>;

std::map<std::string, Bytes> FilesOfStories() {
  std::map<std::string, Bytes> files;
  files["config.json"] = Bytes(tandem_stories_config_begin, tandem_stories_config_end);
  files["generation_config.json"] =
      Bytes(tandem_stories_generation_config_begin, tandem_stories_generation_config_end);
  files["model.safetensors"] = Bytes(tandem_stories_model_begin, tandem_stories_model_end);
  files["tokenizer.json"] = Bytes(tandem_stories_tokenizer_begin, tandem_stories_tokenizer_end);
  files["tokenizer_config.json"] =
      Bytes(tandem_stories_tokenizer_config_begin, tandem_stories_tokenizer_config_end);
  return files;
}

}  // namespace

std::span<const std::string_view> EmbeddedModelNames() { return kNames; }

std::optional<engine::ModelDir> OpenEmbeddedModel(std::string_view name) {
  if (name != kDefaultModel) return std::nullopt;
  return engine::ModelDir::FromMemory(std::string(name), FilesOfStories());
}

void WriteEmbeddedModel(std::string_view name, const std::filesystem::path& dir) {
  TANDEM_CHECK(name == kDefaultModel);
  MakeDirectories(dir.parent_path());
  engine::RemoveStaleTemporaries(dir.parent_path());  // of a killed server
  engine::PublishDirectory(dir, [](const std::filesystem::path& temporary) {
    for (const auto& [file, bytes] : FilesOfStories()) {
      const std::filesystem::path path = temporary / file;
      engine::FileDescriptor out = engine::CreateNewFile(path);
      engine::WriteAll(out, bytes, path);
      out.Close(path);
    }
  });
}

}  // namespace tandem::config
