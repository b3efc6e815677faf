#include "server/cli/tokenizer_source.h"

#include <filesystem>

#include "engine/base/error.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = size_t{512} << 20;

std::optional<std::string> ReadIfThere(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  return engine::ReadWholeFile(path, kMaxFileBytes);
}

}  // namespace

engine::TokenizerFiles LoadTokenizerAt(const std::string& where) {
  const fs::path path(where);
  std::string part;
  if (path.extension() == ".model") part = "tokenizer.model";
  if (path.extension() == ".tiktoken") part = "tokenizer.tiktoken";
  std::optional<engine::TokenizerFiles> files;
  if (engine::ModelDir::IsModelFile(path)) {
    const engine::ModelDir model = engine::ModelDir::Open(path);
    files = engine::LoadTokenizer(
        where,
        [&](std::string_view file) {
          // Without config.json, the vocabulary of an unsupported family can be read too.
          return file == "config.json" ? std::nullopt : model.ReadText(file);
        },
        [&](std::string_view file) { return model.Describe(file); });
  } else if (fs::is_directory(path)) {
    files = engine::LoadTokenizer(where,
                                  [&](std::string_view file) { return ReadIfThere(path / file); });
  } else if (!part.empty()) {
    // Read only the files of its directory that describe this one.
    files = engine::LoadTokenizer(
        path.has_parent_path() ? path.parent_path() : fs::path("."),
        [&](std::string_view file) -> std::optional<std::string> {
          if (file == part) return engine::ReadWholeFile(path, kMaxFileBytes);
          const bool describes = file == "config.json" || file == "tokenizer_config.json";
          return describes ? ReadIfThere(path.parent_path() / file) : std::nullopt;
        });
  } else {
    engine::TokenizerTexts texts;
    // Errors name the directory and the file in it.
    const bool usual_name = path.filename() == "tokenizer.json";
    texts.source =
        usual_name ? (path.has_parent_path() ? path.parent_path() : fs::path(".")) : path;
    texts.tokenizer_json = engine::ReadWholeFile(path, kMaxFileBytes);
    files = engine::LoadTokenizer(texts);
  }
  if (!files) throw Error(ErrorCode::kNotFound, where + " has no tokenizer");
  return std::move(*files);
}

}  // namespace tandem::server
