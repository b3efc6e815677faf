// Loads the models and adapters of the command line, and makes those of later requests.

#include <algorithm>
#include <utility>

#include "config/embedded_models.h"
#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "server/app/app.h"

namespace tandem::server {

std::shared_ptr<const ServedModel> App::MakeModel(OpenedModel opened,
                                                  const engine::EngineOptions& options,
                                                  const std::string& chat_template,
                                                  LoadSettings settings) {
  std::shared_ptr<const ServedModel> model =
      LoadServedModel(std::move(opened), options, chat_template, std::move(settings));
  metrics_.Track({.name = model->id,
                  .figures = model->engine->figures(),
                  .prefix_cache = options.prefix_cache,
                  .kv_dtype = model->loaded().kv_dtype});
  if (options.max_model_len > model->loaded().max_model_len) {
    LogEvent(spdlog::level::warn, "max_model_len_lowered",
             {{"model", model->id},
              {"requested", options.max_model_len},
              {"used", model->loaded().max_model_len},
              {"reason", std::string("the model supports a smaller context")}});
  }
  return model;
}

NameClaim App::ClaimFirst(const std::string& name) {
  const auto as_two_models = [&](const Error& error) {
    return Error(error.code(), "'" + name +
                                   "' names two models: give each a different name with --model, "
                                   "--served-model-name or --adapter (NAME=PATH)");
  };
  return WithContext(as_two_models, [&] { return models_.Claim(name); });
}

MemoryReservation App::ReserveFirst(const std::string& name, const MemoryClaim& claim) {
  const auto with_advice = [](const Error& error) {
    return Error(error.code(), std::string(error.what()) +
                                   ": raise --memory, lower --max-model-len, or choose --dtype "
                                   "int8 or int4");
  };
  return WithContext(with_advice, [&] { return memory_.Reserve(name, claim); });
}

// Returns one list of claims per model, then one per adapter.
std::vector<std::vector<NameClaim>> App::ClaimFirstNames(
    const std::vector<ModelArgument>& sources) {
  std::vector<std::vector<NameClaim>> names;
  for (const ModelArgument& source : sources)
    names.emplace_back().push_back(ClaimFirst(NameOf(source)));
  std::vector<NameClaim>& of_first = names.front();
  for (const std::string& name : options_.served_model_names) {
    const bool is_again = std::any_of(of_first.begin(), of_first.end(),
                                      [&](const NameClaim& claim) { return claim.name() == name; });
    if (!is_again) of_first.push_back(ClaimFirst(name));
  }
  for (const AdapterSource& adapter : options_.adapters) {
    names.emplace_back().push_back(ClaimFirst(adapter.name));
  }
  return names;
}

void App::CheckDraftNames(const std::vector<ModelArgument>& sources) const {
  for (const ModelArgument& draft : options_.draft_models) {
    const bool is_known =
        draft.name.empty() || std::any_of(sources.begin(), sources.end(), [&](const auto& source) {
          return NameOf(source) == draft.name;
        });
    if (is_known) continue;
    throw Error(ErrorCode::kInvalidArgument, "--draft-model " + draft.name + "=" + draft.path +
                                                 ": no --model has the name '" + draft.name + "'");
  }
}

// The draft model of the command line for the model `id`, opened; a name is more than none.
std::optional<OpenedModel> App::DraftOf(const std::string& id) const {
  const ModelArgument* found = nullptr;
  for (const ModelArgument& draft : options_.draft_models) {
    if (draft.name == id) found = &draft;
    if (found == nullptr && draft.name.empty() && id == first_model_id_) found = &draft;
  }
  if (found == nullptr) return std::nullopt;
  ModelArgument source = *found;
  source.name.clear();  // its own
  return OpenModelArgument(source);
}

// Claims all names and all memory before the first model is packed, so that a conflict is refused
// at once. Then splits the free memory evenly between the KV caches. One more part stays free if
// models can be loaded later.
void App::LoadFirstModels() {
  struct First {
    OpenedModel opened;
    std::optional<OpenedModel> draft;
    int64_t most_kv;
    MemoryReservation memory;
  };
  std::vector<ModelArgument> sources = options_.models;
  if (sources.empty()) sources.push_back({"", std::string(config::kDefaultModel)});
  if (!options_.served_model_names.empty()) {
    sources.front().name = options_.served_model_names.front();
  }
  std::vector<std::vector<NameClaim>> names = ClaimFirstNames(sources);
  CheckDraftNames(sources);
  first_model_id_ = NameOf(sources.front());
  std::vector<First> first;
  for (const ModelArgument& source : sources) {
    OpenedModel opened = OpenModelArgument(source);
    std::optional<OpenedModel> draft = DraftOf(opened.id);
    const engine::MemoryPlan plan = PlanServedModel(opened, draft, options_.engine);
    MemoryReservation memory = ReserveFirst(opened.id, plan.least);
    first.push_back({std::move(opened), std::move(draft), plan.most_kv, std::move(memory)});
  }
  std::vector<MemoryReservation> adapter_memory;
  for (const AdapterSource& adapter : options_.adapters) {
    adapter_memory.push_back(ReserveFirst(
        adapter.name,
        engine::PlanAdapterMemory(adapter.path, first.front().opened.files, options_.engine)));
  }
  int64_t parts = static_cast<int64_t>(first.size()) + (LoadsAtRunTime() ? 1 : 0);
  for (First& model : first) model.memory.GrowKv(model.most_kv, parts--);

  const std::string base_id = first.front().opened.id;
  auto next_names = names.begin();
  for (First& model : first) {
    LoadSettings settings;
    settings.memory = std::move(model.memory);
    settings.draft = std::move(model.draft);
    settings.progress = [this](double) { ThrowIfStopping(); };
    models_.Publish(MakeModel(std::move(model.opened), options_.engine, options_.chat_template,
                              std::move(settings)),
                    std::move(*next_names++));
  }
  for (size_t i = 0; i < options_.adapters.size(); ++i) {
    models_.Publish(LoadServedAdapter(options_.adapters[i], models_.Look(base_id), options_.engine,
                                      std::move(adapter_memory[i])),
                    std::move(*next_names++));
  }
}

void App::ThrowIfStopping() const {
  if (is_draining_ || (options_.is_interrupted && options_.is_interrupted())) {
    throw Error(ErrorCode::kCancelled, "stopped while loading");
  }
}

ModelHost::Maker App::ModelMaker() {
  const auto options_for = [this](const ModelLoadSpec& spec) {
    engine::EngineOptions options = options_.engine;
    if (spec.max_model_len) options.max_model_len = *spec.max_model_len;
    if (spec.dtype) {
      options.dtype.reset();
      options.block = engine::BlockFormat::kNone;
      SetDType(*spec.dtype, options);
    }
    return options;
  };
  const auto open = [](const ModelLoadSpec& spec) {
    return OpenModelArgument(
        {.name = spec.id, .path = spec.source, .is_embedded = spec.is_embedded});
  };
  ModelHost::Maker maker;
  maker.plan = [this, open, options_for](const ModelLoadSpec& spec) {
    return PlanServedModel(open(spec), DraftOf(spec.id), options_for(spec));
  };
  maker.make = [this, open, options_for](const ModelLoadSpec& spec, MemoryReservation memory,
                                         const std::function<void(double)>& progress) {
    LoadSettings settings;
    if (spec.parent)
      settings.labels = {.owned_by = "user", .parent = spec.parent, .owner = spec.owner};
    settings.pinned = spec.pinned;
    settings.idle_unload_s = spec.idle_unload_s;
    settings.memory = std::move(memory);
    settings.in_background = true;
    settings.progress = progress;
    settings.draft = DraftOf(spec.id);
    return MakeModel(open(spec), options_for(spec), options_.chat_template, std::move(settings));
  };
  return maker;
}

AdapterHost::Maker App::AdapterMaker() {
  AdapterHost::Maker maker;
  maker.plan = [](const AdapterLoadSpec& spec, const ServedModel& base) {
    return engine::PlanAdapterMemory(spec.path, base.loaded());
  };
  maker.make = [this](const AdapterLoadSpec& spec, std::shared_ptr<const ServedModel> base,
                      MemoryReservation memory) {
    return LoadServedAdapter({spec.name, spec.path}, std::move(base), options_.engine,
                             std::move(memory));
  };
  return maker;
}

}  // namespace tandem::server
