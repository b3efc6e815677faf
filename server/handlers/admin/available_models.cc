#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "server/handlers/endpoints.h"
#include "server/handlers/handlers.h"
#include "server/models/model_scan.h"

namespace tandem::server {
namespace {

using Available = nlohmann::ordered_json;

const char* KindName(FoundModel::Kind kind) {
  switch (kind) {
    case FoundModel::Kind::kGguf:
      return "gguf";
    case FoundModel::Kind::kAdapter:
      return "adapter";
    case FoundModel::Kind::kDirectory:
      break;
  }
  return "directory";
}

std::string RealPath(const std::filesystem::path& path) {
  std::error_code failed;
  const std::filesystem::path real = std::filesystem::canonical(path, failed);
  return failed ? path.string() : real.string();
}

// Served models by their path, or by the name of an embedded model.
class LoadedModels {
 public:
  explicit LoadedModels(const HandlerContext& context) {
    for (const auto& [name, model] : context.models.List()) {
      if (name != model->id) continue;
      ids_.emplace_back(RealPath(model->base ? model->path : model->source), name);
    }
  }
  Available IdsOf(const std::string& source) const {
    Available ids = Available::array();
    for (const auto& [path, id] : ids_) {
      if (path == source) ids.push_back(id);
    }
    return ids;
  }

 private:
  std::vector<std::pair<std::string, std::string>> ids_;
};

Available OrNullText(const std::string& text) {
  return text.empty() ? Available() : Available(text);
}

// GET /admin/models/available
void ListAvailableModels(const HandlerContext& context, Request, ResponseWriter writer) {
  Available body;
  body["object"] = "list";
  body["data"] = Available::array();
  const LoadedModels loaded(context);
  for (const std::string& name : context.named_models) {
    body["data"].push_back({{"path", name},
                            {"kind", "embedded"},
                            {"family", nullptr},
                            {"dtype", nullptr},
                            {"base", nullptr},
                            {"bytes", nullptr},
                            {"loaded_as", loaded.IdsOf(name)}});
  }
  const ModelScan scan = FindModelsBelow(context.model_root);
  for (const FoundModel& model : scan.models) {
    const std::string path = RealPath(context.model_root / model.path);
    body["data"].push_back({{"path", model.path},
                            {"kind", KindName(model.kind)},
                            {"family", OrNullText(model.family)},
                            {"dtype", OrNullText(model.dtype)},
                            {"base", OrNullText(model.base)},
                            {"bytes", model.bytes},
                            {"loaded_as", loaded.IdsOf(path)}});
  }
  body["complete"] = scan.is_complete;
  writer.Json(200, body.dump(-1, ' ', false, Available::error_handler_t::replace));
}

}  // namespace

std::span<const Endpoint> AvailableModelEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/admin/models/available", ListAvailableModels, Access::kAdminKey},
  };
  return kEndpoints;
}

}  // namespace tandem::server
