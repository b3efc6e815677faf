#pragma once

#include <string>

#include "training/spec/spec.h"

namespace tandem::training {

// What `tandem config explain` prints of a key, by any of its names: what it does, what may be
// written, its default, its other names. With a spec also the value there and where it came from.
// Throws kInvalidArgument with the nearest key for a name that means nothing.
std::string ExplainKey(const std::string& name, const TrainSpec* spec);

// One line per key: name, default, what it does.
std::string ListKeys();

// Every key with its value and where it came from.
std::string ShowSpec(const TrainSpec& spec);

}  // namespace tandem::training
