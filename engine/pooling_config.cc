#include "engine/pooling_config.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/formats/model_dir.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

struct Mode {
  std::string_view name;           // the value of `pooling_mode`
  const char* flag;                // the older form: one flag for each mode
  std::optional<Pooling> pooling;  // unset: not supported
};

// The mean divided by another function of the length has the same direction, and embeddings are
// normalised.
constexpr Mode kModes[] = {
    {"cls", "pooling_mode_cls_token", Pooling::kCls},
    {"mean", "pooling_mode_mean_tokens", Pooling::kMean},
    {"mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pooling::kMean},
    {"lasttoken", "pooling_mode_lasttoken", Pooling::kLast},
    {"max", "pooling_mode_max_tokens", std::nullopt},
    {"weightedmean", "pooling_mode_weightedmean_tokens", std::nullopt},
};

PoolingConfig Refuse(const std::string& source, const std::string& what) {
  return {.error = source + " asks for the pooling " + what + ", which is not supported"};
}

PoolingConfig OfMode(const std::string& source, const std::string& name) {
  for (const Mode& mode : kModes) {
    if (mode.name == name && mode.pooling) return {.pooling = *mode.pooling, .error = {}};
  }
  return Refuse(source, Quoted(name));
}

}  // namespace

PoolingConfig ReadPoolingConfig(const ModelDir& dir) {
  const std::optional<std::string> text = dir.ReadText(kPoolingFile);
  if (!text) return {};
  const std::string source = dir.Describe(kPoolingFile);
  const Json config = ParseUntrustedJson(*text, source);
  if (!config.is_object()) throw Error(ErrorCode::kDataLoss, source + " is not an object");
  const std::string mode = JsonStringOr(config, "pooling_mode", "", source);
  if (!mode.empty()) return OfMode(source, mode);
  std::vector<std::string_view> names;
  for (const Mode& one : kModes) {
    if (JsonBoolOr(config, one.flag, false, source)) names.push_back(one.name);
  }
  if (names.empty()) return {};
  if (names.size() > 1) {
    return Refuse(source, Quoted(names[0]) + " joined with " + Quoted(names[1]));
  }
  return OfMode(source, std::string(names[0]));
}

}  // namespace tandem::engine
