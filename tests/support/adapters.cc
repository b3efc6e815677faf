#include "tests/support/adapters.h"

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/formats/safetensors/safetensors.h"
#include "engine/io/atomic_write.h"
#include "engine/io/json.h"
#include "training/lora/lora.h"

namespace tandem::tests {

void WriteRandomAdapter(const std::filesystem::path& model_dir, int64_t rank, uint32_t seed,
                        const std::filesystem::path& dir, const std::string& module_path) {
  training::LoraOptions options;
  options.rank = rank;
  options.module_path = module_path;
  WriteRandomAdapter(model_dir, std::move(options), seed, dir);
}

void WriteRandomAdapter(const std::filesystem::path& model_dir, training::LoraOptions options,
                        uint32_t seed, const std::filesystem::path& dir) {
  const std::string source = (model_dir / "config.json").string();
  const auto json =
      engine::ParseUntrustedJson(engine::ReadWholeFile(source, size_t{1} << 20), source);
  const engine::FamilySpec& family = engine::FindFamily(json, source);
  const engine::ModelConfig config = family.parse_config(json, source);
  options.alpha = 2.0 * static_cast<double>(options.rank);
  const std::vector<training::LoraTarget> targets =
      training::ChooseLoraTargets(options, family, config);
  const std::vector<engine::WeightSpec> base = family.list_weights(config);

  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.1f);
  const std::vector<engine::WeightSpec> specs = training::LoraSpecs(base, targets);
  std::vector<std::vector<float>> values;
  std::vector<engine::NamedTensor> tensors;
  for (const engine::WeightSpec& spec : specs) {
    std::vector<float>& tensor = values.emplace_back(static_cast<size_t>(spec.n * spec.k));
    for (float& value : tensor) value = normal(random);
    tensors.push_back({spec.name,
                       {reinterpret_cast<const std::byte*>(tensor.data()), engine::DType::kF32,
                        spec.source_shape}});
  }
  std::filesystem::create_directories(dir);
  engine::WriteSafetensors(dir / "adapter_model.safetensors", tensors, {{"format", "pt"}});
  engine::WriteFileAtomically(dir / "adapter_config.json",
                              training::LoraConfigOf(options, targets, base, "base"));
}

}  // namespace tandem::tests
