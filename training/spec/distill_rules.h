#pragma once

#include <string>
#include <vector>

#include "training/spec/spec.h"

namespace tandem::training {

// Faults of a spec as to kind train.distill and the keys distill.*, each naming its key. Adds notes
// to a spec of another kind that sets these keys.
std::vector<std::string> DistillFaults(TrainSpec* spec);

}  // namespace tandem::training
