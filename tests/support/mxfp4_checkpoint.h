#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/formats/model_dir.h"
#include "engine/formats/safetensors/safetensors.h"
#include "engine/model/families/config.h"
#include "tests/support/temporary_dir.h"

namespace tandem::tests {

// A tiny gpt-oss with random experts, as published in 2025: dense parts as floats, experts in
// blocks of MXFP4. A second directory has the blocks' numbers in f32.
class Mxfp4Checkpoint {
 public:
  Mxfp4Checkpoint();

  const engine::ModelConfig& config() const { return config_; }
  std::filesystem::path blocks() const { return dir_.path() / "blocks"; }
  std::filesystem::path decoded() const { return dir_.path() / "decoded"; }

  // Gives the first expert of layer 0 a scale that is no number.
  void SpoilScale();

 private:
  void AddStacked(const std::string& prefix, const std::string& stacked,
                  const std::vector<std::string>& projections);
  void Write(const std::filesystem::path& to, const std::vector<engine::NamedTensor>& tensors,
             bool is_quantized) const;

  engine::ModelConfig config_;
  TemporaryDir dir_;
  std::optional<engine::ModelDir> plain_;  // holds the dense parts
  std::mt19937 rng_{7};
  std::deque<std::vector<uint8_t>> bytes_;
  std::deque<std::vector<float>> floats_;
  std::vector<engine::NamedTensor> blocks_, decoded_;
};

}  // namespace tandem::tests
