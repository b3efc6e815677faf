#pragma once

#include <string>

#include "training/spec/spec.h"

namespace tandem::training {

// The text that `tandem config explain` prints for a key, found by any of its names: effect,
// allowed values, default, other names. A `spec` adds its value and where the value came from; null
// leaves it out. Throws kInvalidArgument with the nearest key for an unknown name.
std::string ExplainKey(const std::string& name, const TrainSpec* spec);

// One line per key: name, effect, default.
std::string ListKeys();

// One line per key: value and where it came from. The spec's notes follow.
std::string ShowSpec(const TrainSpec& spec);

}  // namespace tandem::training
