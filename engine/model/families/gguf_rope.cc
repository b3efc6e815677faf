#include "engine/model/families/gguf_rope.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/families/gguf_config.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

// The attention factor of YaRN's own formula (Peng et al. 2023).
double YarnAttention(double factor) { return factor > 1 ? 0.1 * std::log(factor) + 1 : 1; }

// Follows llama.cpp where its YaRN differs from Hugging Face's: the attention factors multiply the
// formula's own factor. `attention_factor` replaces that factor, so it holds the product.
Json YarnScaling(const GgufMetadata& metadata, GgufMscale mscale, double factor) {
  const auto refuse_unless = [&](std::string_view key, double plain) {
    if (metadata.Number(key).value_or(plain) == plain) return;
    metadata.Unsupported(
        key, "is not " + std::to_string(static_cast<int>(plain)) + ", which is not supported");
  };
  if (mscale == GgufMscale::kNone) refuse_unless(kGgufMscaleKey, 0);
  refuse_unless("rope.scaling.yarn_ext_factor", 1);
  Json scaling = {{"rope_type", "yarn"}, {"factor", factor}};
  const auto copy = [&](std::string_view key, const char* field) {
    if (const auto number = metadata.Number(key)) scaling[field] = Shortest(*number);
  };
  if (const auto length = metadata.Int("rope.scaling.original_context_length")) {
    scaling["original_max_position_embeddings"] = *length;
  }
  copy("rope.scaling.yarn_beta_fast", "beta_fast");
  copy("rope.scaling.yarn_beta_slow", "beta_slow");
  const double attention = Shortest(metadata.Number("rope.scaling.attn_factor").value_or(1)) *
                           Shortest(metadata.Number("rope.scaling.yarn_attn_factor").value_or(1));
  const double multiplier = metadata.Number(kGgufMscaleKey).value_or(0);
  if (multiplier != 0 && mscale == GgufMscale::kTenths) {
    // The product of a float and ten: its nearest float prints like the number that was stored.
    const double all = Shortest(static_cast<float>(multiplier / kGgufMscaleTenth));
    scaling["mscale"] = all;
    scaling["mscale_all_dim"] = all;
  } else if (multiplier != 0) {
    scaling["mscale"] = 1.0;
    scaling["mscale_all_dim"] = Shortest(multiplier);
  }
  if (attention != 1) scaling["attention_factor"] = attention * YarnAttention(factor);
  return scaling;
}

// Llama 3's divisor of a frequency (transformers' llama3 rope).
double Llama3Divisor(double turns, double factor, double low, double high) {
  if (turns > high) return 1;
  if (turns < low) return factor;
  const double smooth = (turns - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

// Recovers the parameters of Llama 3's formula from the divisors that the file stores. The low and
// high factors are those of all releases. The largest divisor is the factor. A frequency between
// the borders yields the original context length.
Json Llama3Scaling(const GgufMetadata& metadata, const std::vector<float>& divisors, double theta) {
  constexpr double kLow = 1, kHigh = 4, kUsualLength = 8192;
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  const auto turns_per_position = [&](size_t i) {
    const double exponent = -static_cast<double>(i) / static_cast<double>(divisors.size());
    return std::pow(theta, exponent) / (2 * std::numbers::pi);
  };
  double length = kUsualLength;
  for (size_t i = 0; i < divisors.size(); ++i) {
    const double divisor = divisors[i];
    if (!(divisor > 1 && divisor < factor)) continue;
    const double smooth = (1 / divisor - 1 / factor) / (1 - 1 / factor);
    length = std::round((kLow + smooth * (kHigh - kLow)) / turns_per_position(i));
    break;
  }
  bool follows = length >= 1 && length < 1e9 && factor > 1;
  for (size_t i = 0; follows && i < divisors.size(); ++i) {
    const double expected = Llama3Divisor(length * turns_per_position(i), factor, kLow, kHigh);
    follows = std::abs(static_cast<double>(divisors[i]) - expected) <= 1e-3 * expected;
  }
  if (!follows) {
    throw Error(ErrorCode::kUnsupported,
                metadata.source() +
                    ": tensor 'rope_freqs.weight' does not follow Llama 3's formula; other "
                    "frequency divisors are not supported");
  }
  return Json{{"rope_type", "llama3"},
              {"factor", Shortest(factor)},
              {"low_freq_factor", kLow},
              {"high_freq_factor", kHigh},
              {"original_max_position_embeddings", static_cast<int64_t>(length)}};
}

// Returns the rope scaling of the keys, null for none. As in llama.cpp, a factor without a type is
// linear, `rope.scale_linear` is its old name, and factors 0 and 1 change nothing.
Json ScalingOfKeys(const GgufMetadata& metadata, GgufMscale mscale) {
  const std::string_view type = metadata.String("rope.scaling.type").value_or("linear");
  if (type != "none" && type != "linear" && type != "yarn") {
    metadata.Unsupported("rope.scaling.type",
                         "is " + Quoted(type) + "; supported are 'none', 'linear' and 'yarn'");
  }
  if (type == "none") return nullptr;
  auto stated = metadata.Number("rope.scaling.factor");
  if (!stated) stated = metadata.Number("rope.scale_linear");
  const double factor = stated.value_or(0) == 0 ? 1 : Shortest(*stated);
  if (type == "yarn") return YarnScaling(metadata, mscale, factor);
  return factor == 1 ? Json(nullptr) : Json{{"rope_type", "linear"}, {"factor", factor}};
}

int64_t HeadDimOf(const Json& json) {
  if (const auto head_dim = json.find("head_dim"); head_dim != json.end()) {
    return head_dim->get<int64_t>();
  }
  const int64_t heads = json["num_attention_heads"].get<int64_t>();
  return json["hidden_size"].get<int64_t>() / std::max<int64_t>(heads, 1);
}

}  // namespace

void ReadGgufRopeScaling(const GgufMetadata& metadata, GgufMscale mscale, Json& json) {
  Json scaling = ScalingOfKeys(metadata, mscale);
  const std::vector<float> divisors =
      metadata.RopeDivisors(kGgufRopeDivisors, HeadDimOf(json) / 2).value_or(std::vector<float>());
  if (std::any_of(divisors.begin(), divisors.end(), [](float divisor) { return divisor != 1; })) {
    if (!scaling.is_null()) {
      throw Error(ErrorCode::kUnsupported,
                  metadata.source() + ": tensor 'rope_freqs.weight' divides frequencies that key " +
                      Quoted(metadata.FullName("rope.scaling.type")) +
                      " also scales; only one of them is supported");
    }
    const auto theta = json.find("rope_theta");
    scaling = Llama3Scaling(metadata, divisors, theta == json.end() ? 10000 : theta->get<double>());
  }
  if (!scaling.is_null()) json["rope_scaling"] = std::move(scaling);
}

void AddGgufRopeScaling(const RopeScaling& scaling, std::vector<GgufSetting>& settings,
                        GgufMscale mscale) {
  const auto add_number = [&](std::string_view key, double value) {
    settings.push_back({key, static_cast<float>(value)});
  };
  if (scaling.kind == RopeKind::kLinear) {
    settings.push_back({"rope.scaling.type", std::string_view("linear")});
    add_number("rope.scaling.factor", scaling.factor);
  }
  if (scaling.kind != RopeKind::kYarn) return;
  settings.push_back({"rope.scaling.type", std::string_view("yarn")});
  add_number("rope.scaling.factor", scaling.factor);
  settings.push_back({"rope.scaling.original_context_length",
                      static_cast<uint32_t>(scaling.original_max_positions)});
  add_number("rope.scaling.yarn_beta_fast", scaling.beta_fast);
  add_number("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  if (mscale == GgufMscale::kTenths && scaling.mscale_all_dim != 0) {
    add_number(kGgufMscaleKey, kGgufMscaleTenth * scaling.mscale_all_dim);
    return;  // the attention factor follows from it
  }
  // Readers multiply the formula's own factor by this key.
  const double own = YarnAttention(scaling.factor);
  if (std::abs(scaling.attention_factor - own) > 1e-6 * own) {
    add_number("rope.scaling.attn_factor", scaling.attention_factor / own);
  }
}

}  // namespace tandem::engine
