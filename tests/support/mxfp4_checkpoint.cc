#include "tests/support/mxfp4_checkpoint.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/models/random_model.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kExpertWidth = 64;  // of the residual stream and of an expert

engine::ConstTensorView BytesView(const std::vector<uint8_t>& bytes, std::vector<int64_t> shape) {
  return {.data = reinterpret_cast<const std::byte*>(bytes.data()),
          .dtype = engine::DType::kU8,
          .shape = std::move(shape)};
}

}  // namespace

Mxfp4Checkpoint::Mxfp4Checkpoint() {
  config_ = bench::TinyModelConfig("gpt_oss");
  config_.hidden_dim = config_.ffn_dim = config_.experts.ffn_dim = kExpertWidth;
  const fs::path plain = dir_.path() / "plain";
  bench::WriteRandomModel({.config = config_, .stored = engine::DType::kF32}, plain);
  plain_.emplace(engine::ModelDir::Open(plain));
  for (const std::string& name : plain_->tensor_names()) {
    const bool is_expert = name.find(".experts.") != std::string::npos &&
                           name.find("_proj.weight") != std::string::npos;
    if (is_expert) continue;
    blocks_.push_back({name, plain_->FindStored(name)->view});
    decoded_.push_back(blocks_.back());
  }
  for (int64_t layer = 0; layer < config_.n_layers; ++layer) {
    const std::string experts = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    AddStacked(experts, "gate_up_proj", {"gate_proj", "up_proj"});
    AddStacked(experts, "down_proj", {"down_proj"});
  }
  Write(decoded(), decoded_, /*is_quantized=*/false);
  Write(blocks(), blocks_, /*is_quantized=*/true);
}

// The projections' rows alternate in one stacked tensor [experts, rows, groups, 16 bytes].
void Mxfp4Checkpoint::AddStacked(const std::string& prefix, const std::string& stacked,
                                 const std::vector<std::string>& projections) {
  const auto step = static_cast<int64_t>(projections.size());
  const int64_t experts = config_.experts.router.n_experts, rows = kExpertWidth * step,
                groups = kExpertWidth / 32;
  std::vector<uint8_t>& codes = bytes_.emplace_back(experts * rows * groups * 16);
  std::vector<uint8_t>& scales = bytes_.emplace_back(experts * rows * groups);
  for (uint8_t& byte : codes) byte = static_cast<uint8_t>(rng_());
  for (uint8_t& byte : scales) byte = static_cast<uint8_t>(120 + rng_() % 4);
  blocks_.push_back({prefix + stacked + "_blocks", BytesView(codes, {experts, rows, groups, 16})});
  blocks_.push_back({prefix + stacked + "_scales", BytesView(scales, {experts, rows, groups})});

  constexpr float kNumbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t p = 0; p < step; ++p) {
      std::vector<float>& weight = floats_.emplace_back();
      for (int64_t row = e * rows + p; row < (e + 1) * rows; row += step) {
        for (int64_t i = 0; i < kExpertWidth; ++i) {
          const int64_t group = row * groups + i / 32;
          const int code = codes[group * 16 + i % 32 / 2] >> (i % 2 * 4) & 15;
          const float number = kNumbers[code % 8];
          weight.push_back(
              std::ldexp(code < 8 || number == 0 ? number : -number, scales[group] - 127));
        }
      }
      engine::ConstTensorView view{.data = reinterpret_cast<const std::byte*>(weight.data()),
                                   .dtype = engine::DType::kF32,
                                   .shape = {kExpertWidth, kExpertWidth}};
      decoded_.push_back({prefix + std::to_string(e) + "." + projections[p] + ".weight", view});
    }
  }
}

void Mxfp4Checkpoint::Write(const fs::path& to, const std::vector<engine::NamedTensor>& tensors,
                            bool is_quantized) const {
  fs::create_directory(to);
  std::ifstream in(dir_.path() / "plain/config.json");
  Json config = Json::parse(in);
  if (is_quantized) {
    config["quantization_config"] = {{"quant_method", "mxfp4"},
                                     {"modules_to_not_convert", Json::array({"lm_head"})}};
  }
  std::ofstream(to / "config.json") << config;
  engine::WriteSafetensors(to / "model.safetensors", tensors, {{"format", "pt"}});
}

void Mxfp4Checkpoint::SpoilScale() {
  bytes_[1][5] = 255;
  fs::remove(blocks() / "model.safetensors");
  engine::WriteSafetensors(blocks() / "model.safetensors", blocks_, {{"format", "pt"}});
}

}  // namespace tandem::tests
