#include "engine/model/families/hybrid/mamba_gguf.h"

#include <nlohmann/json.hpp>

namespace tandem::engine {
namespace {

constexpr std::string_view kScanKernel = "ssm.conv_kernel";
constexpr std::string_view kScanWidth = "ssm.inner_size";
constexpr std::string_view kScanState = "ssm.state_size";
constexpr std::string_view kScanHeads = "ssm.time_step_rank";
constexpr std::string_view kScanGroups = "ssm.group_count";

// Whether a block has the tensor.
bool AnyBlockHas(const GgufMetadata& metadata, std::string_view tensor) {
  const int64_t n_blocks = metadata.RequiredInt("block_count");
  for (int64_t block = 0; block < n_blocks && block < int64_t{1} << 16; ++block) {
    if (metadata.HasTensor("blk." + std::to_string(block) + "." + std::string(tensor))) return true;
  }
  return false;
}

}  // namespace

void ReadMambaGguf(const GgufMetadata& metadata, const MambaKeys& keys,
                   nlohmann::ordered_json& json) {
  const int64_t width = metadata.RequiredInt(kScanWidth);
  const int64_t heads = metadata.RequiredInt(kScanHeads);
  if (heads < 1 || width < heads || width % heads != 0) {
    metadata.Unsupported(kScanWidth, "is " + std::to_string(width) + ", which " +
                                         std::to_string(heads) + " heads do not divide");
  }
  json[keys.n_heads] = heads;
  json[keys.head_dim] = width / heads;
  json[keys.n_groups] = metadata.RequiredInt(kScanGroups);
  json[keys.state_dim] = metadata.RequiredInt(kScanState);
  json[keys.kernel] = metadata.RequiredInt(kScanKernel);
  json[keys.conv_bias] = AnyBlockHas(metadata, "ssm_conv1d.bias");
  json[keys.proj_bias] = false;
}

int64_t MambaGgufExpansion(const GgufMetadata& metadata, int64_t hidden_dim) {
  const int64_t width = metadata.RequiredInt(kScanWidth);
  if (hidden_dim < 1 || width % hidden_dim != 0) {
    metadata.Unsupported(kScanWidth, "is " + std::to_string(width) + ", no multiple of the " +
                                         std::to_string(hidden_dim) + " of 'embedding_length'");
  }
  return width / hidden_dim;
}

void AddMambaGguf(const ModelConfig& c, std::vector<GgufSetting>& settings) {
  const ScanSpec& scan = c.recurrent.scan;
  const auto add = [&](std::string_view key, int64_t value) {
    settings.push_back({key, static_cast<uint32_t>(value)});
  };
  add(kScanKernel, c.recurrent.conv.kernel);
  add(kScanWidth, scan.outputs());
  add(kScanState, scan.state_dim);
  add(kScanHeads, scan.n_heads);
  add(kScanGroups, scan.n_groups);
}

std::string RefuseScanBiases(const ModelConfig& c) {
  return c.recurrent.in_bias || c.recurrent.out_bias ? "biases of a Mamba-2 layer's projections"
                                                     : "";
}

std::string RefuseTimeStepLimit(const ModelConfig& c) {
  const ScanSpec& scan = c.recurrent.scan;
  return scan.least_dt > 0 || scan.most_dt < 3e38f ? "a limit of a Mamba-2 layer's time step" : "";
}

std::string RequireDividedScan(const ModelConfig& c) {
  const ScanSpec& scan = c.recurrent.scan;
  return scan.outputs() % scan.state_dim == 0
             ? ""
             : "a Mamba-2 layer whose state size does not divide its width";
}

}  // namespace tandem::engine
