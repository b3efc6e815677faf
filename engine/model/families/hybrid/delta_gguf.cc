#include "engine/model/families/hybrid/delta_gguf.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/model/families/gguf_config.h"

namespace tandem::engine {
namespace {

constexpr GgufDecoderForm kDeltaForm{.partial_rope = true};
constexpr std::string_view kDeltaKernel = "ssm.conv_kernel";
constexpr std::string_view kDeltaKeyDim = "ssm.state_size";
constexpr std::string_view kDeltaKeyHeads = "ssm.group_count";
constexpr std::string_view kDeltaValueHeads = "ssm.time_step_rank";
constexpr std::string_view kDeltaWidth = "ssm.inner_size";
constexpr std::string_view kDeltaInterval = "full_attention_interval";
constexpr std::string_view kDeltaSections = "rope.dimension_sections";
constexpr int64_t kUsualInterval = 4;

const DeltaSpec& DeltaOf(const ModelConfig& c) { return c.recurrent.delta; }

// All q or all k.
int64_t DeltaKeys(const ModelConfig& c) { return DeltaOf(c).n_k_heads * DeltaOf(c).k_dim; }

// v or z of a key head.
int64_t DeltaGroup(const ModelConfig& c) {
  return DeltaOf(c).n_v_heads / DeltaOf(c).n_k_heads * DeltaOf(c).v_dim;
}

// The row of `in_proj_qkvz` with the number `in_part` of a part of each key head: `begin` rows of
// the head precede the part, which has `size`.
int64_t FusedRow(const ModelConfig& c, int64_t in_part, int64_t begin, int64_t size) {
  const int64_t of_head = 2 * DeltaOf(c).k_dim + 2 * DeltaGroup(c);
  return in_part / size * of_head + begin + in_part % size;
}

int64_t FusedQkvRow(const ModelConfig& c, int64_t row) {
  const int64_t keys = DeltaKeys(c), k_dim = DeltaOf(c).k_dim;
  if (row < keys) return FusedRow(c, row, 0, k_dim);
  if (row < 2 * keys) return FusedRow(c, row - keys, k_dim, k_dim);
  return FusedRow(c, row - 2 * keys, 2 * k_dim, DeltaGroup(c));
}

int64_t FusedGateRow(const ModelConfig& c, int64_t row) {
  return FusedRow(c, row, 2 * DeltaOf(c).k_dim + DeltaGroup(c), DeltaGroup(c));
}

// The value head of the file's number `head`.
int64_t TiledHead(const ModelConfig& c, int64_t head) {
  const int64_t n_keys = DeltaOf(c).n_k_heads, of_key = DeltaOf(c).n_v_heads / n_keys;
  return head % n_keys * of_key + head / n_keys;
}

int64_t TiledValue(const ModelConfig& c, int64_t place) {
  const int64_t v_dim = DeltaOf(c).v_dim;
  return TiledHead(c, place / v_dim) * v_dim + place % v_dim;
}

int64_t TiledQkvRow(const ModelConfig& c, int64_t row) {
  const int64_t before = 2 * DeltaKeys(c);
  return row < before ? row : before + TiledValue(c, row - before);
}

int64_t DeltaQkvRows(const ModelConfig& c) { return DeltaOf(c).inputs(); }
int64_t DeltaValueRows(const ModelConfig& c) { return DeltaOf(c).outputs(); }
int64_t DeltaHeadRows(const ModelConfig& c) { return DeltaOf(c).n_v_heads; }

// The distance of layers with attention, 0 for other patterns.
int64_t AttentionInterval(const ModelConfig& c) {
  int64_t interval = 1;
  while (interval < c.n_layers && c.IsRecurrent(interval - 1)) ++interval;
  if (interval == c.n_layers && c.IsRecurrent(interval - 1)) ++interval;
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (c.IsRecurrent(layer) != ((layer + 1) % interval != 0)) return 0;
  }
  return interval;
}

}  // namespace

const GgufOrder kFusedDeltaQkv{.count = DeltaQkvRows, .of = FusedQkvRow, .is_part = true};
const GgufOrder kFusedDeltaGate{.count = DeltaValueRows, .of = FusedGateRow, .is_part = true};
const GgufOrder kTiledQkv{.count = DeltaQkvRows, .of = TiledQkvRow};
const GgufOrder kTiledValues{.count = DeltaValueRows, .of = TiledValue};
const GgufOrder kTiledHeads{.count = DeltaHeadRows, .of = TiledHead};

void ReadDeltaGguf(const GgufMetadata& metadata, nlohmann::ordered_json& json) {
  ReadGgufDecoder(metadata, json, kDeltaForm);
  json["hidden_act"] = "silu";
  const int64_t heads = metadata.RequiredInt(kDeltaValueHeads);
  const int64_t width = metadata.RequiredInt(kDeltaWidth);
  if (heads < 1 || width < heads || width % heads != 0) {
    metadata.Unsupported(kDeltaWidth, "is " + std::to_string(width) + ", which " +
                                          std::to_string(heads) + " heads do not divide");
  }
  json["linear_num_value_heads"] = heads;
  json["linear_value_head_dim"] = width / heads;
  json["linear_num_key_heads"] = metadata.RequiredInt(kDeltaKeyHeads);
  json["linear_key_head_dim"] = metadata.RequiredInt(kDeltaKeyDim);
  json["linear_conv_kernel_dim"] = metadata.RequiredInt(kDeltaKernel);
  json["full_attention_interval"] = metadata.Int(kDeltaInterval).value_or(kUsualInterval);
}

std::vector<GgufSetting> WriteDeltaGguf(const ModelConfig& c) {
  const DeltaSpec& d = DeltaOf(c);
  std::vector<GgufSetting> settings = GgufDecoderSizes(c, kDeltaForm);
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add(kDeltaKernel, c.recurrent.conv.kernel);
  add(kDeltaKeyDim, d.k_dim);
  add(kDeltaKeyHeads, d.n_k_heads);
  add(kDeltaValueHeads, d.n_v_heads);
  add(kDeltaWidth, d.outputs());
  add(kDeltaInterval, AttentionInterval(c));
  return settings;
}

std::vector<GgufSetting> WriteSectionedDeltaGguf(const ModelConfig& c) {
  std::vector<GgufSetting> settings = WriteDeltaGguf(c);
  const auto pairs =
      static_cast<uint32_t>((c.rotary_dim > 0 ? c.rotary_dim : c.attention.head_dim) / 2);
  settings.push_back(
      {kDeltaSections, std::vector<uint32_t>{(pairs + 2) / 3, (pairs + 1) / 3, pairs / 3, 0}});
  return settings;
}

std::string RequireOneDeltaHead(const ModelConfig& c) {
  return DeltaOf(c).k_dim == DeltaOf(c).v_dim
             ? ""
             : "'linear_value_head_dim' other than 'linear_key_head_dim'";
}

std::string RequireAttentionInterval(const ModelConfig& c) {
  return AttentionInterval(c) > 0 ? "" : "'layer_types' without a fixed distance of attention";
}

}  // namespace tandem::engine
