#pragma once

#include <string>

#include "training/spec.h"

namespace tandem::training {

// What `tandem plan` prints: the program with bytes and FLOPs, the parameters, the memory.
std::string DescribePlan(const TrainSpec& spec);

}  // namespace tandem::training
