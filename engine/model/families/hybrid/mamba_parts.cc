#include "engine/model/families/hybrid/mamba_parts.h"

#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/io/json.h"
#include "engine/model/families/hf_config.h"
#include "engine/model/families/hybrid/recurrent_parts.h"

namespace tandem::engine {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostTimeStep = 3.4e38;

// transformers 5 writes an infinite number as {"__float__": "Infinity"}.
bool IsInfinite(const Json& value) {
  const Json* name = &value;
  if (value.is_object() && value.size() == 1 && value.contains("__float__")) {
    name = &value["__float__"];
  }
  return *name == "Infinity" || *name == "inf";
}

void ParseTimeStepLimit(const Json& json, const char* field, ScanSpec& scan,
                        const std::string& source) {
  const auto limit = json.find(field);
  if (limit == json.end() || limit->is_null()) return;
  const std::string start = source + ": field '" + field + "' must be ";
  if (!limit->is_array() || limit->size() != 2) {
    throw Error(ErrorCode::kDataLoss, start + "a list of two numbers");
  }
  const auto number = [&](size_t i) {
    Json wrapped = Json::object();
    wrapped[field] = (*limit)[i];
    return static_cast<float>(JsonNumberOr(wrapped, field, 0, 0, kMostTimeStep, source));
  };
  scan.least_dt = number(0);
  scan.most_dt = IsInfinite((*limit)[1]) ? static_cast<float>(kMostTimeStep) : number(1);
  if (scan.least_dt > scan.most_dt) {
    throw Error(ErrorCode::kDataLoss, start + "in rising order");
  }
}

// The width of the scan, which its heads divide.
int64_t ParseWidth(const Json& json, const MambaKeys& keys, int64_t hidden_dim,
                   const std::string& source) {
  const std::string width = keys.width;
  const bool is_null = !width.empty() && json.contains(width) && json[width].is_null();
  if (!width.empty() && !is_null && (json.contains(width) || keys.default_width > 0)) {
    return JsonIntOr(json, keys.width, keys.default_width, 1, kMaxWidth, source);
  }
  return JsonIntOr(json, keys.expand, 2, 1, 64, source) * hidden_dim;
}

void CheckMamba(const ScanSpec& scan, const MambaKeys& keys, int64_t width,
                const std::string& source) {
  const std::string names =
      std::string(": field '") + keys.n_heads + "' times '" + keys.head_dim + "' must be ";
  if (scan.outputs() != width || scan.head_dim < 1 || scan.head_dim > kMaxHeadDim) {
    const std::string of = *keys.width != 0
                               ? std::string("'") + keys.width + "'"
                               : std::string("'") + keys.expand + "' times 'hidden_size'";
    throw Error(ErrorCode::kDataLoss, source + names + of + ", " + std::to_string(width) +
                                          ", got " + std::to_string(scan.outputs()));
  }
  if (scan.n_heads % scan.n_groups != 0) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + keys.n_groups + "' must divide " +
                                          std::to_string(scan.n_heads) + " ('" + keys.n_heads +
                                          "'), got " + std::to_string(scan.n_groups));
  }
  if (scan.inputs() + scan.outputs() + scan.n_heads > kMaxWidth) {
    throw Error(ErrorCode::kDataLoss, source + ": field '" + keys.n_heads +
                                          "' makes Mamba layers too wide for " +
                                          std::to_string(kMaxWidth) + " columns");
  }
}

// The scan's x, B and C with their multipliers.
Act ScanInput(LayerOps& ops, const ModelConfig& c, Act all) {
  const ScanSpec& scan = c.recurrent.scan;
  const std::array<float, 5>& by = c.branches.scan_parts;
  const int64_t width = scan.outputs(), state = scan.n_groups * scan.state_dim;
  if (by[1] == by[2] && by[2] == by[3]) {
    return Multiplied(ops, ops.ColumnsF32(all, width, scan.inputs()), by[1]);
  }
  const Act x = Multiplied(ops, ops.ColumnsF32(all, width, width), by[1]);
  const Act b = Multiplied(ops, ops.ColumnsF32(all, 2 * width, state), by[2]);
  const Act c_part = Multiplied(ops, ops.ColumnsF32(all, 2 * width + state, state), by[3]);
  return ops.JoinHeads(ops.JoinHeads(x, b, 1, state), c_part, 1, state);
}

// Each group of columns has a norm of its own.
Act GroupNorm(LayerOps& ops, const ModelConfig& c, Act x, const Weight& gamma) {
  const ScanSpec& scan = c.recurrent.scan;
  if (scan.n_groups == 1) return ops.RmsNormF32(x, gamma, c.norm_eps);
  const int64_t length = scan.outputs() / scan.n_groups;
  return ops.ScaleColumns(ops.PlainRmsNorm(x, length, c.norm_eps), gamma);
}

Act GatedNorm(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act y, Act gate) {
  switch (c.recurrent.norm) {
    case ScanNorm::kNone:
      return ops.Gate(y, gate, GateForm::kSilu);
    case ScanNorm::kAfterGate:
      return GroupNorm(ops, c, ops.Gate(y, gate, GateForm::kSilu), w.Take());
    case ScanNorm::kBeforeGate:
      break;
  }
  return ops.Gate(GroupNorm(ops, c, y, w.Take()), gate, GateForm::kSilu);
}

}  // namespace

Act Multiplied(LayerOps& ops, Act x, float factor) {
  return factor == 1 ? x : ops.Scale(x, factor);
}

void RunMultipliedHead(LayerOps& ops, WeightCursor& w, const Weight& embedding,
                       const ModelConfig& c, Act x) {
  const Act normed = Multiplied(ops, ops.RmsNormF32(x, w.Take(), c.norm_eps), c.logit_multiplier);
  ops.Logits(normed, c.tied_embeddings ? embedding : w.Take(), nullptr, 0);
  TANDEM_CHECK(w.at_end());
}

void ParseMamba(const Json& json, const MambaKeys& keys, ModelConfig& c,
                const std::string& source) {
  ScanSpec& scan = c.recurrent.scan;
  scan.n_heads = JsonIntOr(json, keys.n_heads, keys.heads, 1, kMaxHeads, source);
  const int64_t width = *keys.expand == 0 ? 0 : ParseWidth(json, keys, c.hidden_dim, source);
  const auto given = json.find(keys.head_dim);
  const bool is_absent = given == json.end() || given->is_null();
  if (!is_absent && *given != "auto") {
    scan.head_dim = JsonInt(json, keys.head_dim, 1, kMaxHeadDim, source);
  } else {
    scan.head_dim = is_absent && keys.dim > 0 ? keys.dim : width / scan.n_heads;
  }
  scan.n_groups = JsonIntOr(json, keys.n_groups, keys.groups, 1, kMaxHeads, source);
  scan.state_dim = JsonIntOr(json, keys.state_dim, keys.state, 1, kMaxStateKey, source);
  CheckMamba(scan, keys, width == 0 ? scan.outputs() : width, source);
  if (*keys.time_limit != 0) ParseTimeStepLimit(json, keys.time_limit, scan, source);
  c.recurrent.in_bias = c.recurrent.out_bias = JsonBoolOr(json, keys.proj_bias, false, source);
  c.recurrent.conv_bias = JsonBoolOr(json, keys.conv_bias, true, source);
  c.recurrent.conv = {.channels = scan.inputs(),
                      .kernel = JsonIntOr(json, keys.kernel, 4, 1, kMaxConvKernel, source),
                      .form = ConvForm::kSilu};
}

void WriteMamba(const ModelConfig& c, const MambaKeys& keys, Json& json) {
  const ScanSpec& scan = c.recurrent.scan;
  if (*keys.width != 0) json[keys.width] = scan.outputs();
  if (*keys.width == 0 && *keys.expand != 0) json[keys.expand] = scan.outputs() / c.hidden_dim;
  json[keys.n_heads] = scan.n_heads;
  json[keys.head_dim] = scan.head_dim;
  json[keys.n_groups] = scan.n_groups;
  json[keys.state_dim] = scan.state_dim;
  json[keys.kernel] = c.recurrent.conv.kernel;
  json[keys.conv_bias] = c.recurrent.conv_bias;
  json[keys.proj_bias] = c.recurrent.in_bias;
  const bool is_limited = scan.least_dt > 0 || scan.most_dt < 3e38f;
  if (is_limited && *keys.time_limit != 0) {
    json[keys.time_limit] =
        Json::array({ShortestDouble(scan.least_dt), ShortestDouble(scan.most_dt)});
  }
}

void RequireMambaSilu(const Json& json, const char* field, const std::string& source) {
  if (ParseActivation(json, field, "silu", source) == Activation::kSilu) return;
  ThrowUnsupported(source, Quoted(field) + " other than 'silu' for Mamba-2 layers");
}

void ListMamba(std::vector<WeightSpec>& specs, const std::string& prefix, const ModelConfig& c) {
  const ScanSpec& scan = c.recurrent.scan;
  ListProjection(specs, prefix + "in_proj", scan.outputs() + scan.inputs() + scan.n_heads,
                 c.hidden_dim, c.recurrent.in_bias);
  specs.push_back(ConvSpecOf(prefix + "conv1d.weight", c.recurrent.conv));
  if (c.recurrent.conv_bias) specs.push_back(VectorSpec(prefix + "conv1d.bias", scan.inputs()));
  specs.push_back(VectorSpec(prefix + "dt_bias", scan.n_heads));
  specs.push_back(VectorSpec(prefix + "A_log", scan.n_heads));
  specs.push_back(VectorSpec(prefix + "D", scan.n_heads));
  if (c.recurrent.norm != ScanNorm::kNone) {
    specs.push_back(VectorSpec(prefix + "norm.weight", scan.outputs()));
  }
  ListProjection(specs, prefix + "out_proj", c.hidden_dim, scan.outputs(), c.recurrent.out_bias);
}

Act RunMamba(LayerOps& ops, WeightCursor& w, const ModelConfig& c, Act h) {
  const ScanSpec& scan = c.recurrent.scan;
  const std::array<float, 5>& by = c.branches.scan_parts;
  // [rows, gate | x, B, C | dt]
  const Act all = Project(ops, h, TakeProjection(w, c.recurrent.in_bias));
  const Act gate = Multiplied(ops, ops.ColumnsF32(all, 0, scan.outputs()), by[0]);
  const Act xbc = ScanInput(ops, c, all);
  const Act dt =
      Multiplied(ops, ops.ColumnsF32(all, scan.outputs() + scan.inputs(), scan.n_heads), by[4]);
  const Weight& taps = w.Take();
  const Weight* conv_bias = c.recurrent.conv_bias ? &w.Take() : nullptr;
  const Weight& dt_bias = w.Take();
  const Weight& a_log = w.Take();
  const Weight& d = w.Take();
  const Act mixed = ops.CausalConv(xbc, taps, conv_bias, c.recurrent.conv);
  const Act y = ops.SelectiveScan(mixed, dt, a_log, dt_bias, d, scan);
  const Act normed = GatedNorm(ops, w, c, y, gate);
  return Project(ops, normed, TakeProjection(w, c.recurrent.out_bias));
}

void ShapeTinyMamba(ModelConfig& c) {
  c.recurrent.scan = {
      .n_heads = 8, .head_dim = 12, .n_groups = 2, .state_dim = 10, .least_dt = 0.01f};
  c.recurrent.conv = {.channels = c.recurrent.scan.inputs(), .kernel = 4, .form = ConvForm::kSilu};
  c.recurrent.conv_bias = true;
}

}  // namespace tandem::engine
