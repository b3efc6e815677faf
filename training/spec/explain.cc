#include "training/spec/explain.h"

#include <algorithm>

#include "engine/base/error.h"
#include "training/spec/spec_foreign.h"
#include "training/spec/spec_keys.h"

namespace tandem::training {
namespace {

std::string ValueIn(const SpecKey& key, const TrainSpec& spec) {
  if (!key.value.show) return DefaultOf(key);
  const std::string shown = key.value.show(spec);
  return shown == key.value.show(TrainSpec{}) ? DefaultOf(key) : shown;
}

std::string OriginIn(const SpecKey& key, const TrainSpec& spec) {
  const auto origin = spec.origins.find(key.names[0]);
  return origin == spec.origins.end() ? "default" : origin->second;
}

std::string Padded(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

size_t NameWidth() {
  size_t width = 0;
  for (const SpecKey& key : SpecKeys()) width = std::max(width, key.names[0].size());
  return width;
}

}  // namespace

std::string ExplainKey(const std::string& name, const TrainSpec* spec) {
  const SpecKey* key = FindSpecKey(name);
  if (key == nullptr) {
    const auto foreign = FindForeignKey(name);
    if (!foreign) {
      throw Error(ErrorCode::kInvalidArgument,
                  name + ": unknown key; did you mean " + NearestSpecKey(name) + "?");
    }
    const bool any = foreign->harmless == "*";
    return name + ": a MaxText key without effect here" +
           (any ? "" : "; other values are refused") + ": " + foreign->note + "\n";
  }
  std::string text = key->names[0] + ": " + key->effect + "\n";
  text += "  values   " + key->value.allowed + "\n";
  text += "  default  " + DefaultOf(*key) + "\n";
  for (size_t i = 1; i < key->names.size(); ++i) {
    text += (i == 1 ? "  also     " : ", ") + key->names[i];
  }
  if (key->names.size() > 1) text += "\n";
  if (spec != nullptr) {
    text += "  value    " + ValueIn(*key, *spec) + " (" + OriginIn(*key, *spec) + ")\n";
  }
  return text;
}

std::string ListKeys() {
  const size_t width = NameWidth() + 2;
  std::string text;
  for (const SpecKey& key : SpecKeys()) {
    text += Padded(key.names[0], width) + key.effect + " (" + DefaultOf(key) + ")\n";
  }
  return text;
}

std::string ShowSpec(const TrainSpec& spec) {
  const size_t width = NameWidth() + 1;
  std::string text;
  for (const SpecKey& key : SpecKeys()) {
    if (!key.value.show) continue;
    text += Padded(key.names[0] + ":", width) + " " + Padded(ValueIn(key, spec), 24) + "  # " +
            OriginIn(key, spec) + "\n";
  }
  for (const std::string& note : spec.notes) text += "# " + note + "\n";
  return text;
}

}  // namespace tandem::training
