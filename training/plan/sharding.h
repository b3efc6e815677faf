#pragma once

#include <cstdint>
#include <string>

#include "training/spec/spec.h"

namespace tandem::training {

// The division of a run over ranks, for `tandem plan --sharding`: micro-batches of each rank, bytes
// by class that a rank holds, the share that every rank holds whole, and bytes sent per step. Reads
// no weights. Throws the run's own errors for a mesh or rows that do not suit the number of ranks.
std::string DescribeSharding(const TrainSpec& spec, int64_t ranks);

}  // namespace tandem::training
