#include "tests/support/golden.h"

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "engine/base/check.h"
#include "engine/io/atomic_write.h"
#include "tests/support/paths.h"

namespace tandem::tests {
namespace {

namespace fs = std::filesystem;

nlohmann::json ReadJson(const fs::path& path) {
  return nlohmann::json::parse(engine::ReadWholeFile(path, 64 << 20));
}

GoldenTraining ParseTraining(const nlohmann::json& json) {
  GoldenTraining training;
  json.at("input_ids").get_to(training.input_ids);
  json.at("attention_mask").get_to(training.attention_mask);
  json.at("labels").get_to(training.labels);
  json.at("loss").get_to(training.loss);
  json.at("losses_before_steps_1_2_3_and_after_3").get_to(training.losses);
  json.at("gradient_norms_before_clipping_steps_1_2_3").get_to(training.gradient_norms);
  json.at("counted_label_tokens").get_to(training.counted_label_tokens);
  json.at("decayed_parameters").get_to(training.decayed_parameters);
  json.at("parameters_with_zero_gradient_by_symmetry").get_to(training.zero_gradient_parameters);
  return training;
}

fs::path GoldenDir(const Golden& golden) {
  return (golden.adapter_dir.empty() ? golden.dir : golden.adapter_dir) / "golden";
}

}  // namespace

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(SourceDir() / "tests/golden")) {
    if (fs::exists(entry.path() / "golden/golden.json")) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> AdapterGoldenNames() {
  std::vector<std::string> names;
  for (const std::string& model : GoldenNames()) {
    const fs::path dir = SourceDir() / "tests/golden" / model;
    if (fs::exists(dir / "lora/golden/golden.json")) names.push_back(model + "/lora");
  }
  return names;
}

Golden LoadGolden(std::string_view name) {
  Golden golden;
  golden.name = name;
  golden.dir = SourceDir() / "tests/golden" / name;
  if (fs::exists(golden.dir / "adapter_config.json")) {
    golden.adapter_dir = golden.dir;
    golden.dir = golden.adapter_dir.parent_path();
  }
  const nlohmann::json json = ReadJson(GoldenDir(golden) / "golden.json");
  const engine::SafetensorsFile forward = OpenGoldenTensors(golden, "forward");
  for (const nlohmann::json& each : json.at("sequences")) {
    GoldenSequence& sequence = golden.sequences.emplace_back();
    each.at("input_ids").get_to(sequence.input_ids);
    each.at("greedy_ids").get_to(sequence.greedy_ids);
    each.at("greedy_logprobs").get_to(sequence.greedy_logprobs);
    each.at("logits_max_abs").get_to(sequence.logits_max_abs);
    sequence.logits =
        GoldenFloats(forward, "logits." + std::to_string(golden.sequences.size() - 1));
  }
  golden.training = ParseTraining(json.at("training"));
  return golden;
}

engine::SafetensorsFile OpenGoldenTensors(const Golden& golden, std::string_view file) {
  return engine::SafetensorsFile::Open(GoldenDir(golden) / (std::string(file) + ".safetensors"));
}

std::vector<float> GoldenFloats(const engine::SafetensorsFile& file, std::string_view tensor) {
  const engine::ConstTensorView* view = file.Find(tensor);
  TANDEM_CHECK(view != nullptr);
  std::vector<float> values(static_cast<size_t>(view->elements()));
  engine::ConvertToF32(*view, values);
  return values;
}

std::optional<fs::path> FindSharedData(std::string_view relative) {
  const fs::path root = SharedDir();
  if (fs::exists(root / relative)) return root / relative;
  return std::nullopt;
}

}  // namespace tandem::tests
