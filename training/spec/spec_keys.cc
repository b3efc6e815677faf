#include "training/spec/spec_keys.h"

#include "engine/base/edit_distance.h"
#include "training/spec/spec_sections.h"

namespace tandem::training {
namespace {

constexpr size_t kMarkdownColumns = 120;

std::vector<SpecKey> AllKeys() {
  std::vector<SpecKey> all;
  for (const auto section :
       {RunKeys, ModelKeys, LoraKeys, DataKeys, DpoKeys, DistillKeys, TrainKeys, GuardKeys,
        OptimizerKeys, RematKeys, SampleKeys, CheckpointKeys, ParallelKeys, MachineKeys}) {
    for (SpecKey& key : section()) all.push_back(std::move(key));
  }
  return all;
}

// A list item, broken at spaces, with further lines indented.
std::string Wrapped(const std::string& text) {
  std::string out;
  size_t line_bytes = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (line_bytes > 0 && line_bytes + 1 + word.size() > kMarkdownColumns) {
      out += "\n ";
      line_bytes = 1;
    }
    if (line_bytes > 0) {
      out += ' ';
      ++line_bytes;
    }
    out += word;
    line_bytes += word.size();
    at = end + 1;
  }
  return out;
}

}  // namespace

std::span<const SpecKey> SpecKeys() {
  static const std::vector<SpecKey> keys = AllKeys();
  return keys;
}

const SpecKey* FindSpecKey(const std::string& name) {
  for (const SpecKey& key : SpecKeys()) {
    if (std::find(key.names.begin(), key.names.end(), name) != key.names.end()) return &key;
  }
  return nullptr;
}

std::string NearestSpecKey(const std::string& name) {
  std::string nearest;
  size_t best = SIZE_MAX;
  for (const SpecKey& key : SpecKeys()) {
    for (const std::string& known : key.names) {
      const size_t distance = EditDistance(name, known);
      if (distance >= best) continue;
      best = distance;
      nearest = known;
    }
  }
  return nearest;
}

std::string DefaultOf(const SpecKey& key) {
  if (!key.default_text.empty()) return key.default_text;
  const std::string shown = key.value.show(TrainSpec{});
  return shown.empty() ? "none" : shown;
}

std::vector<SpecPath> PathsOf(const TrainSpec& spec) {
  std::vector<SpecPath> paths;
  for (const SpecKey& key : SpecKeys()) {
    if (!key.value.is_path || key.names.front() == "base_output_directory") continue;
    paths.push_back({key.names, key.value.show(spec)});
  }
  return paths;
}

std::string MarkdownEntry(const SpecKey& key) {
  std::string text = "- `" + key.names[0] + "` (";
  for (size_t i = 1; i < key.names.size(); ++i) {
    text.append(i > 1 ? ", " : "also ").append("`" + key.names[i] + "`");
  }
  if (key.names.size() > 1) text += "; ";
  const std::string standard = DefaultOf(key);
  const bool is_value = key.default_text.empty() && standard != "none";
  if (standard == kRequired) {
    text += "required";
  } else {
    text += "default: " + (is_value ? "`" + standard + "`" : standard);
  }
  text += "): " + key.effect;
  const std::string& allowed = key.value.allowed;
  if (allowed.starts_with("one of")) text += "; " + allowed;
  return Wrapped(text);
}

}  // namespace tandem::training
