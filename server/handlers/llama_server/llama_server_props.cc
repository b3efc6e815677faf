#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/chat/chat_template.h"
#include "server/handlers/endpoints.h"
#include "server/handlers/llama_server/generation_settings.h"
#include "server/wire/version.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

// The model of the parameter `model`, else the first one: tools probe before they know a name.
std::shared_ptr<const ServedModel> ProbedModel(const HandlerContext& context,
                                               const Request& request) {
  const Viewer viewer = ViewerOf(context, request);
  const std::string* name = request.FindQuery("model");
  if (name != nullptr) return context.models.Look(*name, viewer);
  const auto entries = context.models.List(viewer);
  if (entries.empty()) return context.models.Find(std::nullopt, viewer);  // throws why
  return entries.front().model;
}

Json DefaultSettings(const ServedModel& model) {
  engine::StopSpec stop;
  stop.max_new_tokens = -1;
  return GenerationSettings(model, model.loaded().default_sampling, stop);
}

// GET /props
void LlamaServerProps(const HandlerContext& context, Request request, ResponseWriter writer) {
  const auto model = ProbedModel(context, request);
  const engine::LoadedModel& loaded = model->loaded();
  Json body;
  body["default_generation_settings"]["n_ctx"] = loaded.max_model_len;
  body["default_generation_settings"]["params"] = DefaultSettings(*model);
  body["total_slots"] = model->engine->stats().max_seqs;
  body["model_alias"] = model->id;
  body["model_path"] = model->root;  // a name: paths stay on the server
  body["modalities"] = {{"vision", false}, {"audio", false}};
  body["chat_template"] = loaded.chat_template ? std::string(loaded.chat_template->source()) : "";
  body["bos_token"] = loaded.bos_text;
  body["eos_token"] = loaded.eos_text;
  body["build_info"] = "tandem-" + VersionNumber() + "-" + VersionCommit();
  writer.Json(200, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// GET /slots
void LlamaServerSlots(const HandlerContext& context, Request request, ResponseWriter writer) {
  const auto model = ProbedModel(context, request);
  const engine::EngineStats stats = model->engine->stats();
  if (request.FindQuery("fail_on_no_slot") != nullptr && stats.requests_running >= stats.max_seqs) {
    throw Error(ErrorCode::kUnavailable, "no slot is free").WithReason("server_overloaded");
  }
  Json body = Json::array();
  for (int64_t i = 0; i < stats.max_seqs; ++i) {
    Json slot;
    slot["id"] = i;
    slot["n_ctx"] = model->loaded().max_model_len;
    slot["speculative"] = false;
    slot["is_processing"] = i < stats.requests_running;
    body.push_back(std::move(slot));
  }
  writer.Json(200, body.dump());
}

}  // namespace

std::span<const Endpoint> LlamaServerPropsEndpoints() {
  static constexpr Endpoint kEndpoints[] = {
      {"GET", "/props", LlamaServerProps},
      {"GET", "/slots", LlamaServerSlots},
  };
  return kEndpoints;
}

}  // namespace tandem::server
