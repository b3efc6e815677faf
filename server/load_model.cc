#include "server/load_model.h"

#include <chrono>
#include <filesystem>

#include "config/embedded_models.h"
#include "engine/base/log.h"
#include "engine/engine.h"

namespace tandem::server {

namespace fs = std::filesystem;

ModelSource ParseModelSource(const std::string& text) {
  // An existing path may hold '='.
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || fs::exists(text)) return {"", text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::string NameOf(const ModelSource& source) {
  if (!source.name.empty()) return source.name;
  fs::path path = fs::path(source.path).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "dir/" and "dir" are the same
  if (path.filename() == "." || path.filename() == "..")
    path = fs::absolute(path).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

engine::ModelDir OpenModelSource(const ModelSource& source) {
  if (fs::exists(source.path)) return engine::ModelDir::Open(source.path);
  if (std::optional<engine::ModelDir> embedded = config::OpenEmbeddedModel(source.path)) {
    return std::move(*embedded);
  }
  std::string embedded_names;
  for (const std::string_view name : config::EmbeddedModelNames()) {
    embedded_names += embedded_names.empty() ? "" : ", ";
    embedded_names += name;
  }
  throw Error(ErrorCode::kNotFound,
              "model '" + source.path +
                  "' is neither a directory, nor a file, nor an embedded model (" +
                  (embedded_names.empty() ? "none are" : embedded_names) +
                  "); this version does not download models");
}

std::shared_ptr<const ServedModel> LoadServedModel(const ModelSource& source,
                                                   const engine::EngineOptions& options,
                                                   const std::string& chat_template,
                                                   const ServedModelLabels& labels) {
  const auto begin = std::chrono::steady_clock::now();
  const engine::ModelDir dir = OpenModelSource(source);
  engine::LoadedModel loaded = engine::OpenModel(dir, options, chat_template);

  auto model = std::make_shared<ServedModel>();
  model->id = NameOf(source);
  model->root = labels.parent.value_or(model->id);
  model->parent = labels.parent;
  model->owned_by = labels.owned_by;
  model->created = std::chrono::duration_cast<std::chrono::seconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
  if (loaded.tokenizer) model->control_tokens = ControlTokens(*loaded.tokenizer);
  const int64_t context = loaded.max_model_len;
  const int64_t bytes = loaded.weight_bytes;
  const std::string dtype = loaded.weights_dtype;
  model->engine = std::make_shared<engine::Engine>(std::move(loaded), options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  spdlog::info("model_loaded model={} dtype={} context={} weight_mib={:.1f} seconds={:.2f}",
               model->id, dtype, context, static_cast<double>(bytes) / (1 << 20), elapsed.count());
  return model;
}

}  // namespace tandem::server
