#include "server/wire/ollama/options.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLeastInt = std::numeric_limits<int64_t>::min();
constexpr int64_t kMostInt = std::numeric_limits<int64_t>::max();
constexpr size_t kMostOllamaStops = 16;
constexpr size_t kMostOllamaStopBytes = 256;

// A sampler that this server does not have, and its value that switches it off.
struct AbsentSampler {
  const char* name;
  double neutral;
};
constexpr AbsentSampler kAbsentSamplers[] = {{"mirostat", 0}, {"tfs_z", 1}, {"typical_p", 1}};

void RefuseAbsentSamplers(FieldReader& options) {
  for (const AbsentSampler& sampler : kAbsentSamplers) {
    const auto value = options.Number(sampler.name, -1e9, 1e9);
    if (!value || *value == sampler.neutral) continue;
    const std::string path = std::string("options.") + sampler.name;
    throw UnsupportedField(path, path +
                                     " is not supported: use temperature, top_k, top_p, min_p "
                                     "and the penalties instead");
  }
}

void CheckOllamaStop(const Json& stop, const std::string& path) {
  if (!stop.is_string()) throw WrongType(path, "a string", stop);
  const size_t n_bytes = stop.get_ref<const std::string&>().size();
  if (n_bytes == 0 || n_bytes > kMostOllamaStopBytes) {
    throw BadValue(path, path + " must have 1 to " + std::to_string(kMostOllamaStopBytes) +
                             " bytes, got " + std::to_string(n_bytes));
  }
}

void ReadOllamaStop(FieldReader& options, Json& body) {
  const std::string path = "options.stop";
  const Json* stop = options.Any("stop");
  if (stop == nullptr || *stop == Json::array()) return;
  if (stop->is_array()) {
    if (stop->size() > kMostOllamaStops) {
      throw BadValue(path, path + " must have at most " + std::to_string(kMostOllamaStops) +
                               " strings, got " + std::to_string(stop->size()));
    }
    for (size_t i = 0; i < stop->size(); ++i) {
      CheckOllamaStop((*stop)[i], path + "[" + std::to_string(i) + "]");
    }
  } else {
    CheckOllamaStop(*stop, path);
  }
  body["stop"] = *stop;
}

void ReadOllamaPenalties(FieldReader& options, Json& body) {
  const auto repeat = options.Number("repeat_penalty", 0.01, 10);
  // The penalty covers prompt and answer here, whatever the window. A window of 0 switches it off.
  const bool has_window = options.Int("repeat_last_n", -1, kMostInt).value_or(-1) != 0;
  if (repeat && has_window) body["repetition_penalty"] = *repeat;
  for (const char* name : {"presence_penalty", "frequency_penalty"}) {
    if (const auto value = options.Number(name, -2, 2)) body[name] = *value;
  }
}

// The rest of a Go duration after its sign: numbers with units, such as "1h30m" or "0.5s".
bool ReadDuration(std::string_view text, bool& is_zero) {
  is_zero = true;
  if (text.empty()) return false;
  while (!text.empty()) {
    double number = 0;
    const auto [end, fault] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    // from_chars reads signs and "inf" too.
    const bool is_number = (text.front() >= '0' && text.front() <= '9') || text.front() == '.';
    if (fault != std::errc() || !is_number) return false;
    is_zero = is_zero && number == 0;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (text.empty()) return true;  // seconds
    bool has_unit = false;
    for (const std::string_view unit : {"ns", "us", "ms", "s", "m", "h"}) {
      if (!text.starts_with(unit) || (unit == "m" && text.starts_with("ms"))) continue;
      text.remove_prefix(unit.size());
      has_unit = true;
      break;
    }
    if (!has_unit) return false;
  }
  return true;
}

}  // namespace

void ReadOllamaOptions(FieldReader& reader, const ModelLimits& limits, Json& body,
                       std::vector<std::string>& ignored) {
  const Json* given = reader.Object("options");
  if (given == nullptr) return;
  FieldReader options(*given, "options");
  // 0 and negative numbers ask for no limit.
  const auto n_predict = options.Int("num_predict", kLeastInt, kMostInt);
  if (n_predict && *n_predict > 0) body["max_tokens"] = std::min(*n_predict, limits.max_model_len);
  if (const auto value = options.Number("temperature", 0, 2)) body["temperature"] = *value;
  if (const auto value = options.Number("top_p", 0, 1)) body["top_p"] = *value;
  if (const auto value = options.Number("min_p", 0, 1)) body["min_p"] = *value;
  const auto top_k = options.Int("top_k", -1, std::numeric_limits<int32_t>::max());
  if (top_k) body["top_k"] = *top_k;
  // -1 asks for a random seed.
  const auto seed = options.Int("seed", kLeastInt, kMostInt);
  if (seed && *seed != -1) body["seed"] = *seed;
  ReadOllamaStop(options, body);
  ReadOllamaPenalties(options, body);
  RefuseAbsentSamplers(options);
  // The context belongs to the model. A smaller one changes nothing as long as the chat fits.
  if (options.Int("num_ctx", kLeastInt, kMostInt).value_or(0) > limits.max_model_len) {
    ignored.emplace_back("options.num_ctx");
  }
  for (const std::string& name : options.unknown()) ignored.push_back("options." + name);
}

bool ReadKeepAlive(FieldReader& reader) {
  const Json* given = reader.Any("keep_alive");
  if (given == nullptr) return false;
  if (given->is_number()) return given->get<double>() == 0;
  bool is_zero = false;
  if (given->is_string()) {
    std::string_view text = given->get_ref<const std::string&>();
    if (text.starts_with('-') || text.starts_with('+')) text.remove_prefix(1);
    if (ReadDuration(text, is_zero)) return is_zero;
  }
  throw BadValue("keep_alive", "keep_alive must be seconds or a duration such as \"5m\", got " +
                                   ShortForm(*given));
}

}  // namespace tandem::server
