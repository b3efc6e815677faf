#include "server/cli/maxtext_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <vector>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// Words that only steer MaxText's own backend, or that the source's files answer.
constexpr std::array kWithoutEffect = {
    "model_name",     "hf_access_token",          "skip_jax_distributed_system", "hardware",
    "run_name",       "use_multimodal",           "lazy_load_tensors",           "attention",
    "tokenizer_path", "checkpoint_conversion_fn",
};
constexpr std::array kWithEffect = {
    "hf_model_path",
    "base_output_directory",
    "scan_layers",
    "weight_dtype",
    "save_dtype",
    "checkpoint_storage_use_ocdbt",
    "checkpoint_storage_use_zarr3",
};

Error BadWord(const std::string& what) { return {ErrorCode::kInvalidArgument, "convert: " + what}; }

std::string KeyOf(const std::string& word) {
  const size_t begin = std::min(word.find_first_not_of('-'), word.size());
  return word.substr(begin, word.find('=') - begin);
}

bool ReadSwitch(const std::string& key, std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (value == "true" || value == "1") return true;
  if (value == "false" || value == "0") return false;
  throw BadWord(key + ": must be true or false, got \"" + value + "\"");
}

std::string ReadWeightType(const std::string& key, const std::string& value) {
  if (value == "bfloat16") return "bf16";
  if (value == "float32") return "f32";
  throw BadWord(key + ": must be bfloat16 or float32, got \"" + value + "\"");
}

void SetWord(const std::string& key, const std::string& value, convert::ConvertSpec* spec) {
  if (key == "hf_model_path") {
    spec->source = value;
  } else if (key == "base_output_directory") {
    spec->target = value;
  } else if (key == "scan_layers") {
    spec->layout = ReadSwitch(key, value) ? "scanned" : "unscanned";
  } else if (key == "weight_dtype" || key == "save_dtype") {
    spec->dtype = ReadWeightType(key, value);
  } else if (key == "checkpoint_storage_use_ocdbt") {
    spec->maxtext.ocdbt = ReadSwitch(key, value);
  } else if (key == "checkpoint_storage_use_zarr3") {
    spec->maxtext.zarr = ReadSwitch(key, value) ? 3 : 2;
  }
}

}  // namespace

bool HasMaxTextWords(std::span<const std::string> words) {
  return std::any_of(words.begin(), words.end(), [](const std::string& word) {
    std::error_code absent;
    return word.find('=') != std::string::npos && !fs::exists(word, absent);
  });
}

std::string ReadMaxTextWords(std::span<const std::string> words, convert::ConvertSpec* spec) {
  std::string without_effect;
  std::string model_name;
  bool is_first = true;
  for (const std::string& word : words) {
    if (word.empty()) continue;
    const bool is_config = is_first && word.find('=') == std::string::npos;
    is_first = false;
    if (is_config) continue;  // MaxText's base.yml
    const size_t equals = word.find('=');
    if (equals == std::string::npos) throw BadWord("\"" + word + "\": must be key=value");
    const std::string key = KeyOf(word);
    const std::string value = word.substr(equals + 1);
    if (key == "model_name") model_name = value;
    if (std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end()) {
      without_effect += (without_effect.empty() ? "" : ", ") + key;
    } else if (std::find(kWithEffect.begin(), kWithEffect.end(), key) != kWithEffect.end()) {
      SetWord(key, value, spec);
    } else {
      std::vector<std::string> known(kWithEffect.begin(), kWithEffect.end());
      known.insert(known.end(), kWithoutEffect.begin(), kWithoutEffect.end());
      throw BadWord(key + ": unknown key" + DidYouMean(key, known));
    }
  }
  if (spec->source.empty()) {
    throw BadWord("hf_model_path: must name the directory of the model" +
                  (model_name.empty() ? "" : " " + model_name) +
                  "; `tandem pull ORG/NAME` downloads it and prints its directory");
  }
  if (spec->target.empty()) throw BadWord("base_output_directory: must be given");
  spec->format = "maxtext";
  return without_effect.empty() ? "" : without_effect + " have no effect here";
}

}  // namespace tandem::server
