#include "server/wire/fine_tuning_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>

#include "server/wire/field_reader.h"
#include "server/wire/metadata.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxSeed = 2147483647;
constexpr int64_t kMaxSteps = int64_t{1} << 40;
constexpr size_t kMaxSamplePrompts = 8;
constexpr size_t kMaxSamplePromptBytes = 4096;
constexpr std::array<std::string_view, 7> kModules = {"q", "k", "v", "o", "gate", "up", "down"};

Error Unsupported(const std::string& param, const std::string& message) {
  return Error(ErrorCode::kUnsupported, message).WithParam(param).WithReason("unsupported_value");
}

bool IsAuto(FieldReader& reader, std::string_view name) {
  const Json* value = reader.Any(name);
  return value != nullptr && value->is_string() && value->get_ref<const std::string&>() == "auto";
}

std::optional<int64_t> IntOrAuto(FieldReader& reader, const char* name, int64_t min, int64_t max) {
  return IsAuto(reader, name) ? std::nullopt : reader.Int(name, min, max);
}

// Reads a number in (0, max] or "auto".
std::optional<double> PositiveOrAuto(FieldReader& reader, const std::string& path, const char* name,
                                     double max) {
  if (IsAuto(reader, name)) return std::nullopt;
  const std::optional<double> value = reader.Number(name, 0, max);
  if (value == 0.0) {
    throw BadValue(path + "." + name, path + "." + name + " must be greater than 0, got 0");
  }
  return value;
}

std::string OneOf(FieldReader& reader, const std::string& path, const char* name,
                  std::initializer_list<std::string_view> words, std::string fallback) {
  const std::optional<std::string> value = reader.String(name);
  if (!value) return fallback;
  if (std::find(words.begin(), words.end(), *value) != words.end()) return *value;
  std::string list;
  for (const std::string_view word : words) list += (list.empty() ? "" : ", ") + std::string(word);
  throw BadValue(path + "." + name, path + "." + name + " must be one of " + list + ", got " +
                                        ShortForm(Json(*value)));
}

void RefuseUnknown(const FieldReader& reader, const std::string& path) {
  if (const std::vector<std::string> unknown = reader.unknown(); !unknown.empty()) {
    throw BadValue(path + "." + unknown.front(),
                   path + " has no " + ShortForm(Json(unknown.front())));
  }
}

FineTuningLora ParseLora(const Json& object, const std::string& path) {
  FieldReader reader(object, path);
  FineTuningLora lora;
  lora.rank = reader.Int("rank", 1, 256).value_or(lora.rank);
  lora.alpha = PositiveOrAuto(reader, path, "alpha", 1e6).value_or(lora.alpha);
  lora.dropout = reader.Number("dropout", 0, 1).value_or(lora.dropout);
  if (lora.dropout == 1) throw BadValue(path + ".dropout", path + ".dropout must be less than 1");
  if (const Json* modules = reader.Array("target_modules")) {
    for (const Json& module : *modules) {
      const bool is_known =
          module.is_string() &&
          std::find(kModules.begin(), kModules.end(), module.get<std::string>()) != kModules.end();
      if (!is_known) {
        throw BadValue(path + ".target_modules",
                       path + ".target_modules must be among q, k, v, o, gate, up and down, got " +
                           ShortForm(module));
      }
      lora.target_modules.push_back(module.get<std::string>());
    }
    if (lora.target_modules.empty()) {
      throw BadValue(path + ".target_modules", path + ".target_modules must not be empty");
    }
  }
  lora.use_dora = reader.Bool("use_dora").value_or(false);
  if (const Json* modules = reader.Array("modules_to_save")) {
    for (const Json& module : *modules) {
      if (!module.is_string() || module.get_ref<const std::string&>().empty()) {
        throw BadValue(path + ".modules_to_save",
                       path + ".modules_to_save must hold names of modules such as lm_head, got " +
                           ShortForm(module));
      }
      lora.modules_to_save.push_back(module.get<std::string>());
    }
  }
  RefuseUnknown(reader, path);
  return lora;
}

// `truncate` keeps the beginning of an example; it was the default earlier.
std::string ParseOverLength(FieldReader& reader, const std::string& path, FineTuningMethod method) {
  std::string over_length =
      OneOf(reader, path, "over_length", {"truncate_left", "error", "drop", "split", "truncate"},
            FineTuningHyperparameters().over_length);
  if (over_length == "split" && method == FineTuningMethod::kDpo) {
    throw BadValue(path + ".over_length",
                   path +
                       ".over_length: a pair of answers cannot be split; choose truncate_left, "
                       "drop or error");
  }
  return over_length;
}

FineTuningSamples ParseSamples(const Json& object, const std::string& path) {
  FieldReader reader(object, path);
  FineTuningSamples samples;
  samples.every = reader.Int("every", 1, kMaxSteps).value_or(0);
  if (samples.every == 0) throw MissingField(path + ".every");
  samples.max_tokens = reader.Int("max_tokens", 1, 512).value_or(samples.max_tokens);
  const Json* prompts = reader.Array("prompts");
  if (prompts == nullptr) throw MissingField(path + ".prompts");
  for (const Json& prompt : *prompts) {
    const bool is_usable = prompt.is_string() && !prompt.get_ref<const std::string&>().empty() &&
                           prompt.get_ref<const std::string&>().size() <= kMaxSamplePromptBytes;
    if (!is_usable) {
      throw BadValue(path + ".prompts", path + ".prompts must be texts of 1 to " +
                                            std::to_string(kMaxSamplePromptBytes) + " bytes, got " +
                                            ShortForm(prompt));
    }
    samples.prompts.push_back(prompt.get<std::string>());
  }
  if (samples.prompts.empty() || samples.prompts.size() > kMaxSamplePrompts) {
    throw BadValue(path + ".prompts", path + ".prompts must hold 1 to " +
                                          std::to_string(kMaxSamplePrompts) + " texts");
  }
  RefuseUnknown(reader, path);
  return samples;
}

// A row format of the training spec that suits the method.
std::optional<std::string> ParseFormat(FieldReader& reader, const std::string& path,
                                       FineTuningMethod method) {
  if (!reader.String("format")) return std::nullopt;
  if (method == FineTuningMethod::kDpo) {
    return OneOf(reader, path, "format", {"auto", "openai_preference", "preference"}, "");
  }
  return OneOf(reader, path, "format",
               {"auto", "messages", "sharegpt", "alpaca", "prompt_completion", "text"}, "");
}

void ParseExtensions(FieldReader& reader, const std::string& path, FineTuningMethod method,
                     FineTuningHyperparameters& out) {
  out.max_steps = reader.Int("max_steps", 1, kMaxSteps);
  out.seq_len = reader.Int("seq_len", 16, std::numeric_limits<int32_t>::max());
  if (const Json* lora = reader.Any("lora")) {
    if (lora->is_object()) {
      out.lora = ParseLora(*lora, path + ".lora");
    } else if (!lora->is_boolean()) {
      throw WrongType(path + ".lora", "an object, true or false", *lora);
    } else if (!lora->get<bool>()) {
      out.lora.reset();
    }
  }
  out.over_length = ParseOverLength(reader, path, method);
  out.warmup_ratio = reader.Number("warmup_ratio", 0, 1);
  out.weight_decay = reader.Number("weight_decay", 0, 1);
  out.grad_clip = reader.Number("grad_clip", 0, 1e6);
  out.schedule = OneOf(reader, path, "schedule", {"linear", "cosine", "constant"}, out.schedule);
  out.checkpoint_every = reader.Int("checkpoint_every", 1, kMaxSteps);
  out.format = ParseFormat(reader, path, method);
  if (const Json* samples = reader.Object("samples")) {
    out.samples = ParseSamples(*samples, path + ".samples");
  }
}

FineTuningHyperparameters ParseHyperparameters(const Json& object, const std::string& path,
                                               FineTuningMethod method) {
  FieldReader reader(object, path);
  FineTuningHyperparameters out;
  out.n_epochs = IntOrAuto(reader, "n_epochs", 1, 50);
  out.batch_size = IntOrAuto(reader, "batch_size", 1, 256);
  out.learning_rate_multiplier = PositiveOrAuto(reader, path, "learning_rate_multiplier", 1000);
  if (method == FineTuningMethod::kDpo) out.beta = PositiveOrAuto(reader, path, "beta", 2);
  ParseExtensions(reader, path, method, out);
  RefuseUnknown(reader, path);
  return out;
}

// `method` holds the hyperparameters in newer requests, `hyperparameters` in older ones.
void ParseMethod(FieldReader& reader, FineTuningRequest& out) {
  const Json* old_place = reader.Object("hyperparameters");
  if (const Json* method = reader.Object("method")) {
    FieldReader method_reader(*method, "method");
    const std::string type = method_reader.RequiredString("type");
    if (type == "dpo") {
      out.method = FineTuningMethod::kDpo;
    } else if (type != "supervised") {
      throw Unsupported("method",
                        "method.type must be supervised or dpo, got " + ShortForm(Json(type)));
    }
    if (const Json* of_type = method_reader.Object(type)) {
      const std::string path = "method." + type;
      FieldReader of_type_reader(*of_type, path);
      if (const Json* parameters = of_type_reader.Object("hyperparameters")) {
        out.hyperparameters =
            ParseHyperparameters(*parameters, path + ".hyperparameters", out.method);
        if (old_place != nullptr) {
          throw BadValue("hyperparameters",
                         "hyperparameters are also given in " + path + ": give them in one place");
        }
      }
      RefuseUnknown(of_type_reader, path);
    }
    RefuseUnknown(method_reader, "method");
  }
  if (old_place != nullptr) {
    out.hyperparameters = ParseHyperparameters(*old_place, "hyperparameters", out.method);
  }
}

std::optional<std::string> ParseSuffix(FieldReader& reader) {
  std::optional<std::string> suffix = reader.String("suffix");
  if (!suffix) return suffix;
  const bool is_plain = !suffix->empty() && suffix->size() <= 64 &&
                        std::all_of(suffix->begin(), suffix->end(), [](char c) {
                          return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                                 (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
                        });
  if (!is_plain) {
    throw BadValue("suffix", "suffix must be 1 to 64 characters of [A-Za-z0-9_-], got " +
                                 ShortForm(Json(*suffix)));
  }
  return suffix;
}

}  // namespace

std::string_view NameOf(FineTuningMethod method) {
  return method == FineTuningMethod::kDpo ? "dpo" : "supervised";
}

FineTuningRequest ParseFineTuningRequest(const Json& body) {
  FieldReader reader(body);
  FineTuningRequest out;
  out.model = reader.RequiredString("model");
  out.training_file = reader.RequiredString("training_file");
  out.validation_file = reader.String("validation_file");
  ParseMethod(reader, out);
  out.suffix = ParseSuffix(reader);
  out.seed = reader.Int("seed", 0, kMaxSeed);
  out.metadata = ParseMetadata(reader);
  if (const Json* integrations = reader.Array("integrations");
      integrations != nullptr && !integrations->empty()) {
    throw UnsupportedField("integrations", "integrations is not supported: leave it out");
  }
  out.dry_run = reader.Bool("dry_run").value_or(false);
  out.ignored_params = reader.unknown();
  return out;
}

}  // namespace tandem::server
