#pragma once

#include <cstdint>

#include "training/program/program.h"

namespace tandem::training {

// What a program's ops take beside its arena, on so many workers: scratch of OpsContext at its
// largest, and tables of rotations. `block_base`: the frozen weights are held in blocks of
// integers.
int64_t ScratchNeeds(const Program& program, int threads, bool block_base);

}  // namespace tandem::training
