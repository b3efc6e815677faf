#include "server/models/load_model.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <thread>
#include <utility>

#include "config/embedded_models.h"
#include "engine/base/attempt.h"
#include "engine/base/edit_distance.h"
#include "engine/base/log.h"
#include "engine/base/thread_name.h"
#include "engine/base/unix_time.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/hub/reference.h"
#include "engine/model/model.h"
#include "engine/objects/fetched_path.h"
#include "engine/objects/object_url.h"
#include "server/models/model_provenance.h"

namespace tandem::server {

namespace fs = std::filesystem;

ModelArgument ParseModelArgument(const std::string& text) {
  // An existing path may contain '='.
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || fs::exists(text)) return {"", text, true};
  return {text.substr(0, equals), text.substr(equals + 1), true};
}

std::string NameOf(const ModelArgument& source) {
  if (!source.name.empty()) return source.name;
  // A hub model keeps its full hub name.
  if (source.may_pull && !fs::exists(source.path)) {
    if (const auto reference = engine::ParseHubReference(source.path)) {
      return reference->repo + (reference->gguf.empty() ? "" : ":" + reference->gguf);
    }
  }
  fs::path path = fs::path(source.path).lexically_normal();  // an object's URL: its last part
  if (path.filename().empty()) path = path.parent_path();    // "dir/" and "dir" are the same
  if (path.filename() == "." || path.filename() == "..")
    path = fs::absolute(path).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  return path.filename().string();
}

namespace {

// A suggestion for a misspelt path or embedded name; empty if nothing is close.
std::string NearPath(const std::string& text) {
  const fs::path path(text);
  const fs::path parent = path.parent_path();
  std::vector<std::string> near;
  for (const std::string_view name : config::EmbeddedModelNames()) near.emplace_back(name);
  // A look at many entries would delay the message, and another user's directory may refuse it.
  constexpr int kMostEntries = 1000;
  int n = 0;
  std::error_code error;
  for (fs::directory_iterator at(parent.empty() ? "." : parent, error), end;
       !error && at != end && n < kMostEntries; at.increment(error), ++n) {
    near.push_back((parent / at->path().filename()).string());
  }
  return DidYouMean(text, near);
}

}  // namespace

OpenedModel OpenModelArgument(const ModelArgument& source) {
  // An embedded name has no organisation, so it never causes a hub lookup.
  const std::string path = source.may_pull ? engine::FetchedPath(source.path) : source.path;
  if (!source.is_embedded && fs::exists(path)) {
    return {NameOf(source), engine::ModelDir::Open(path)};
  }
  if (std::optional<engine::ModelDir> embedded = config::OpenEmbeddedModel(path)) {
    return {NameOf(source), std::move(*embedded)};
  }
  std::string embedded_names;
  for (const std::string_view name : config::EmbeddedModelNames()) {
    embedded_names += embedded_names.empty() ? "" : ", ";
    embedded_names += name;
  }
  throw Error(
      ErrorCode::kNotFound,
      "model '" + path + "' is not a directory, a file, an embedded model (" +
          (embedded_names.empty() ? "none" : embedded_names) +
          "), a name at the hub (ORG/NAME), or an object (s3://BUCKET/KEY, gs://BUCKET/KEY)" +
          (source.may_pull ? NearPath(path) : ""));
}

void SetDType(const std::string& dtype, engine::EngineOptions& options) {
  if (dtype == "f32") options.dtype = engine::DType::kF32;
  if (dtype == "bf16") options.dtype = engine::DType::kBF16;
  if (dtype == "int8") options.block = engine::BlockFormat::kInt8;
  if (dtype == "int4") options.block = engine::BlockFormat::kInt4;
}

namespace {

// A low share of the CPU. With one such thread per core, decoding loses a few per cent; a load
// still finishes on a machine that is always busy.
constexpr int kLoadingNice = 15;

// Runs `work` on a low-priority thread; the threads it starts inherit the priority.
void RunInBackground(const std::function<void()>& work) {
  std::exception_ptr failure;
  std::thread thread([&] {
    NameThisThread("tandem-pack");
    // On Linux both settings are per thread and inherited. A refusal only loses the low priority.
    const sched_param no_priority{};
    (void)::sched_setscheduler(0, SCHED_BATCH, &no_priority);
    (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLoadingNice);
    failure = FaultOf(work);
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

// The draft model needs neither a chat template nor prefixes of its own.
void OpenDraft(const std::string& target_id, const OpenedModel& draft,
               engine::EngineOptions& options, const LoadSettings& settings,
               engine::LoadedModel& target) {
  const engine::LoadedModel opened =
      engine::OpenModel(draft.files, options, /*chat_template_override=*/"", settings.progress);
  engine::AttachDraft(target, target_id, opened, draft.id);
  if (options.draft_rows == 0) {
    options.draft_rows = engine::kDraftRows;
    options.looks_up = false;
  }
  spdlog::info("draft_model_loaded model={} draft_model={} parameters={} weights=\"{}\"", target_id,
               draft.id, opened.parameters, BytesText(opened.weight_bytes));
}

}  // namespace

engine::MemoryPlan PlanServedModel(const OpenedModel& opened,
                                   const std::optional<OpenedModel>& draft,
                                   const engine::EngineOptions& options) {
  engine::MemoryPlan plan = engine::PlanMemory(opened.files, options);
  if (!draft) return plan;
  engine::EngineOptions of_draft = options;
  of_draft.kv_format = engine::KvFormat::kCompute;
  const engine::MemoryPlan more = engine::PlanMemory(draft->files, of_draft);
  plan.least.weights += more.least.weights;
  plan.least.kv += more.least.kv;
  plan.least.scratch += more.least.scratch;
  plan.most_kv += more.most_kv;
  return plan;
}

std::shared_ptr<const ServedModel> LoadServedModel(OpenedModel opened,
                                                   engine::EngineOptions options,
                                                   const std::string& chat_template,
                                                   LoadSettings settings) {
  const auto begin = std::chrono::steady_clock::now();
  engine::LoadedModel loaded;
  const auto open = [&] {
    loaded = engine::OpenModel(opened.files, options, chat_template, settings.progress);
    if (settings.draft) OpenDraft(opened.id, *settings.draft, options, settings, loaded);
  };
  // Only packing runs in the background: the engine's threads must not inherit the low priority.
  if (settings.in_background) {
    RunInBackground(open);
  } else {
    open();
  }

  auto model = std::make_shared<ServedModel>();
  const ServedModelLabels& labels = settings.labels;
  model->id = opened.id;
  model->root = labels.parent.value_or(model->id);
  const std::string& source = opened.files.name();
  model->source = fs::exists(source) ? fs::absolute(source).string() : source;
  model->parent = labels.parent;
  model->owned_by = labels.owned_by;
  model->owner = labels.owner;
  model->provenance = ModelProvenance(model->id, source, loaded.model->content_hash());
  model->pinned = settings.pinned;
  model->idle_unload_s = settings.idle_unload_s;
  model->created = UnixNow();
  model->memory = std::move(settings.memory);
  MemoryClaim claim = model->memory.claim();
  if (claim.total() > 0) options.kv_cache_bytes = claim.kv;
  claim.weights =
      loaded.weight_bytes + (loaded.draft == nullptr ? 0 : loaded.draft->weight_bytes());
  claim.weights_mapped = loaded.weights_mapped;
  const int64_t context = loaded.max_model_len;
  const int64_t parameters = loaded.parameters, active = loaded.active_parameters;
  const int64_t active_bytes = loaded.active_weight_bytes;
  const std::string dtype = loaded.weights_dtype;
  model->engine = std::make_shared<engine::Engine>(std::move(loaded), options);
  const engine::EngineStats stats = model->engine->stats();
  claim.kv = stats.kv_bytes;
  claim.scratch = stats.scratch_bytes;
  model->memory.Settle(claim);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  spdlog::info(
      "model_loaded model={} dtype={} context={} parameters={} active_parameters={} "
      "weights=\"{}\" active_weights=\"{}\" mapped={} kv=\"{}\" scratch=\"{}\" seconds={:.2f}",
      model->id, dtype, context, parameters, active, BytesText(claim.weights),
      BytesText(active_bytes), claim.weights_mapped, BytesText(claim.kv), BytesText(claim.scratch),
      elapsed.count());
  return model;
}

}  // namespace tandem::server
