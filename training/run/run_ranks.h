#pragma once

#include "training/dist/collectives.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Throws on every rank when the ranks differ in program, instruction set or spec. The message names
// the two ranks and hosts.
void CheckSameStart(Collectives& ranks, const TrainSpec& spec);

}  // namespace tandem::training
