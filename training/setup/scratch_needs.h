#pragma once

#include <cstdint>

#include "training/program/program.h"

namespace tandem::training {

// Bytes that a program's ops use besides its arena with this many workers: OpsContext scratch at
// its largest, and rotation tables. `block_base`: the frozen weights are in integer blocks.
int64_t ScratchNeeds(const Program& program, int threads, bool block_base);

}  // namespace tandem::training
