#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/program/program.h"
#include "training/setup/model_files.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Memory of one kind that a run holds.
struct MemoryClass {
  std::string name;
  int64_t bytes = 0;
};

// The program of a spec's run and its memory, computed without allocating it.
struct MemoryNeeds {
  Program program;  // of one micro-batch
  std::vector<MemoryClass> classes;
  int64_t checkpoint_copy_bytes = 0;  // extra copy during an asynchronous checkpoint, if memory
                                      // allows

  int64_t total_bytes() const;
};
// Throws the run's own errors for the same faults. Throws kResourceExhausted with the numbers
// when `train.remat` auto cannot stay below resources.memory_max_bytes.
MemoryNeeds FindMemoryNeeds(const TrainSpec& spec, const ModelFiles& files);

// The spec's rematerialisation. For kAuto, max_bytes is the spec's value, or the rest of
// resources.memory_max_bytes after all other needs.
RematOptions RematFor(const TrainSpec& spec, const ModelFiles& files);

}  // namespace tandem::training
