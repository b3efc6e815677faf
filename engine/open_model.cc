#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/attempt.h"
#include "engine/base/log.h"
#include "engine/base/thread_pool.h"
#include "engine/chat/answers/tool_detection.h"
#include "engine/chat/answers/tool_format.h"
#include "engine/chat/chat_template.h"
#include "engine/constrain/grammar.h"
#include "engine/engine.h"
#include "engine/formats/model_dir.h"
#include "engine/infill.h"
#include "engine/io/json.h"
#include "engine/io/sha256.h"
#include "engine/kernels/arithmetic.h"
#include "engine/kernels/kernels.h"
#include "engine/loop/memory_plan.h"
#include "engine/model/adapter.h"
#include "engine/model/model.h"
#include "engine/ops/ops_context.h"
#include "engine/pooling_config.h"
#include "engine/tokenizer/tokenizer.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// Reads end tokens and default sampling from generation_config.json.
void ReadGenerationConfig(const ModelDir& dir, LoadedModel& loaded, std::set<TokenId>& end_tokens) {
  const std::optional<std::string> text = dir.ReadText("generation_config.json");
  if (!text) return;
  const std::string source = dir.Describe("generation_config.json");
  const Json config = ParseUntrustedJson(*text, source);
  if (!config.is_object()) throw Error(ErrorCode::kDataLoss, source + " is not an object");

  if (const auto eos = config.find("eos_token_id"); eos != config.end() && !eos->is_null()) {
    const Json ids = eos->is_array() ? *eos : Json::array({*eos});
    for (const Json& id : ids) {
      const Json holder = {{"eos_token_id", id}};
      end_tokens.insert(
          static_cast<TokenId>(JsonInt(holder, "eos_token_id", 0, loaded.vocab_size - 1, source)));
    }
  }
  SamplingParams& sampling = loaded.default_sampling;
  constexpr double kLeastPositive = 1e-3;
  for (const SamplingField& field : kSamplingFields) {
    if (!field.is_of_model) continue;
    float& value = sampling.*field.value;
    value = static_cast<float>(JsonNumberOr(config, field.name, static_cast<double>(value),
                                            field.is_positive ? kLeastPositive : field.min,
                                            field.max_of_model, source));
  }
  sampling.top_k = static_cast<int32_t>(JsonNumberOr(config, "top_k", 0, -1, 1 << 24, source));
}

// Adds the two tokens that end an answer in harmony, for files that list only one of them.
void AddHarmonyEnds(const Tokenizer& tokenizer, int64_t vocab_size, std::set<TokenId>& end_tokens) {
  std::vector<TokenId> ids;
  for (const std::string_view mark : {kHarmonyChannel, kHarmonyReturn, kHarmonyCall}) {
    const std::optional<TokenId> id = tokenizer.FindToken(mark);
    if (!id || !tokenizer.IsSpecial(*id) || *id >= vocab_size) return;
    ids.push_back(*id);
  }
  end_tokens.insert(ids.begin() + 1, ids.end());
}

// A template that the user named must compile. If the model's own template does not compile, the
// model still serves completions.
void CompileTemplate(const std::string& override_text, const std::optional<std::string>& own,
                     const std::string& source, LoadedModel& loaded) {
  if (!override_text.empty()) {
    loaded.chat_template = ChatTemplate::Compile(override_text);
    return;
  }
  if (!own) return;
  const auto error = ErrorOf([&] { loaded.chat_template = ChatTemplate::Compile(*own); });
  if (!error) return;
  loaded.chat_template_error = error->what();
  spdlog::warn("chat template not usable model=\"{}\" error=\"{}\"", source, error->what());
}

// Clients compare this to know that answers come from the same bits.
std::string SystemFingerprint(const LoadedModel& loaded, const KernelTable& kernels) {
  const Model& model = *loaded.model;
  std::string text = model.fingerprint() + "\n" + std::string(ProgramVersion()) + "\n" +
                     std::string(ArithmeticOf(kernels));
  if (loaded.kv_dtype != DTypeName(model.dtype())) text += "\nkv " + loaded.kv_dtype;
  return "fp_" + ToHex(Sha256Of(std::as_bytes(std::span(text)))).substr(0, 16);
}

}  // namespace

std::shared_ptr<const Adapter> OpenAdapter(const std::filesystem::path& dir,
                                           const LoadedModel& base, const EngineOptions& options) {
  ThreadPool pool(options.threads);
  OpsContext ops(options.kernels != nullptr ? *options.kernels : Kernels(), pool);
  const LoraAdapter files = LoraAdapter::Open(dir);
  std::shared_ptr<const Adapter> adapter = Adapter::Load(files, base.model, ops);
  files.CheckUnchanged();
  return adapter;
}

MemoryClaim PlanAdapterMemory(const std::filesystem::path& dir, const ModelDir& base,
                              const EngineOptions& options) {
  const ModelOutline outline = OutlineModel(base, ToLoadOptions(options));
  return {.weights = AdapterBytes(LoraAdapter::Open(dir), outline.types.dtype)};
}

MemoryClaim PlanAdapterMemory(const std::filesystem::path& dir, const LoadedModel& base) {
  return {.weights = AdapterBytes(LoraAdapter::Open(dir), base.model->dtype())};
}

std::string_view ProgramVersion() { return TANDEM_VERSION; }

LoadedModel OpenModel(const ModelDir& dir, const EngineOptions& options,
                      const std::string& chat_template_override,
                      const std::function<void(double)>& progress) {
  const KernelTable& kernels = options.kernels != nullptr ? *options.kernels : Kernels();
  ThreadPool pool(options.threads);
  OpsContext ops(kernels, pool);
  LoadOptions load = ToLoadOptions(options);
  load.progress = progress;

  // Before the weights: packing takes minutes, and a refused tokenizer ends the load immediately.
  std::optional<TokenizerFiles> files = LoadTokenizer(
      dir.name(), [&](std::string_view name) { return dir.ReadText(name); },
      [&](std::string_view name) { return dir.Describe(name); });
  if (!files) {
    spdlog::warn(
        "model_has_no_tokenizer model=\"{}\" reason=\"no tokenizer.json, tokenizer.model, "
        "*.tiktoken "
        "or vocab.json with merges.txt: only /v1/completions with token ids is served\"",
        dir.name());
  }

  PoolingConfig pooling = ReadPoolingConfig(dir);

  LoadedModel loaded;
  loaded.pooling = pooling.pooling;
  loaded.pooling_error = std::move(pooling.error);
  ModelOutline outline = OutlineModel(dir, load);
  loaded.vocab_size = outline.config.vocab_size;
  std::set<TokenId> end_tokens(outline.config.eos_tokens.begin(), outline.config.eos_tokens.end());
  ReadGenerationConfig(dir, loaded, end_tokens);
  if (files) {
    loaded.infill = FindInfillTokens(*files);
    loaded.tokenizer = std::move(files->tokenizer);
    loaded.eos = files->eos;
    if (loaded.eos) end_tokens.insert(*loaded.eos);
    if (loaded.tokenizer) AddHarmonyEnds(*loaded.tokenizer, loaded.vocab_size, end_tokens);
  }
  loaded.end_tokens.assign(end_tokens.begin(), end_tokens.end());
  if (!loaded.eos && !loaded.end_tokens.empty()) loaded.eos = loaded.end_tokens.front();
  // Its thread reads the vocabulary while the weights load.
  const auto grammars =
      std::make_shared<GrammarCompiler>(loaded.tokenizer, loaded.end_tokens, loaded.vocab_size);
  grammars->ReadAhead();
  loaded.grammars = grammars;

  loaded.model = Model::Load(dir, std::move(outline), load, ops);
  const ModelConfig& config = loaded.model->config();
  loaded.hidden_dim = config.hidden_dim;
  loaded.max_model_len = config.max_context_len;
  if (options.max_model_len > 0) {
    loaded.max_model_len = std::min(loaded.max_model_len, options.max_model_len);
  }
  loaded.format = dir.format();
  loaded.weights_dtype = loaded.model->weights_type();
  loaded.kv_dtype =
      options.kv_format == KvFormat::kInt8 ? "int8" : DTypeName(loaded.model->dtype());
  loaded.weight_bytes = loaded.model->weight_bytes();
  loaded.parameters = loaded.model->parameter_count();
  loaded.active_parameters = loaded.model->active_parameters();
  loaded.active_weight_bytes = loaded.model->active_weight_bytes();
  loaded.has_state = ModelRunner::StateFloats(*loaded.model) > 0;
  loaded.weights_mapped = loaded.model->is_mapped();
  loaded.fingerprint = SystemFingerprint(loaded, kernels);

  if (config.bos_token >= 0) loaded.bos = config.bos_token;
  if (files) {
    if (files->bos) loaded.bos = files->bos;
    loaded.add_bos = files->add_bos;
    loaded.text_suffix = files->suffix;
    CompileTemplate(chat_template_override, files->chat_template, dir.name(), loaded);
  }
  if (loaded.tokenizer) {
    if (loaded.bos) loaded.bos_text = loaded.tokenizer->TokenBytes(*loaded.bos);
    if (loaded.eos) loaded.eos_text = loaded.tokenizer->TokenBytes(*loaded.eos);
    if (loaded.chat_template) {
      loaded.tool_format =
          DetectToolFormat(*loaded.chat_template, loaded.bos_text, loaded.eos_text);
    }
  }
  return loaded;
}

}  // namespace tandem::engine
