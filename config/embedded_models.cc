#include "config/embedded_models.h"

#include <array>
#include <cstddef>
#include <map>
#include <string>

// Puts a file of the repository into the read-only data of the program, aligned so that tensors
// can be read in place. The stack note keeps the object from asking for an executable stack.
#define TANDEM_EMBED(symbol, file)                    \
  asm(".section .rodata.embedded, \"a\", @progbits\n" \
      ".balign 64\n"                                  \
      ".globl " #symbol "_begin\n" #symbol            \
      "_begin:\n"                                     \
      ".incbin \"" TANDEM_MODELS_DIR "/" file         \
      "\"\n"                                          \
      ".globl " #symbol "_end\n" #symbol              \
      "_end:\n"                                       \
      ".byte 0\n"                                     \
      ".previous\n"                                   \
      ".section .note.GNU-stack, \"\", @progbits\n"   \
      ".previous\n");                                 \
  extern "C" const std::byte symbol##_begin[];        \
  extern "C" const std::byte symbol##_end[]

TANDEM_EMBED(tandem_stories_config, "tandem-stories/config.json");
TANDEM_EMBED(tandem_stories_generation_config, "tandem-stories/generation_config.json");
TANDEM_EMBED(tandem_stories_model, "tandem-stories/model.safetensors");
TANDEM_EMBED(tandem_stories_tokenizer, "tandem-stories/tokenizer.json");
TANDEM_EMBED(tandem_stories_tokenizer_config, "tandem-stories/tokenizer_config.json");

namespace tandem::config {
namespace {

constexpr std::array<std::string_view, 1> kNames = {kDefaultModel};

}  // namespace

std::span<const std::string_view> EmbeddedModelNames() { return kNames; }

std::optional<engine::ModelDir> OpenEmbeddedModel(std::string_view name) {
  if (name != kDefaultModel) return std::nullopt;
  using Bytes = std::span<const std::byte>;
  std::map<std::string, Bytes> files;
  files["config.json"] = Bytes(tandem_stories_config_begin, tandem_stories_config_end);
  files["generation_config.json"] =
      Bytes(tandem_stories_generation_config_begin, tandem_stories_generation_config_end);
  files["model.safetensors"] = Bytes(tandem_stories_model_begin, tandem_stories_model_end);
  files["tokenizer.json"] = Bytes(tandem_stories_tokenizer_begin, tandem_stories_tokenizer_end);
  files["tokenizer_config.json"] =
      Bytes(tandem_stories_tokenizer_config_begin, tandem_stories_tokenizer_config_end);
  return engine::ModelDir::FromMemory(std::string(name), std::move(files));
}

}  // namespace tandem::config
