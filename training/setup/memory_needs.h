#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/program/program.h"
#include "training/setup/model_files.h"
#include "training/spec/spec.h"

namespace tandem::training {

// Bytes of one kind that a run holds.
struct MemoryClass {
  std::string name;
  int64_t bytes = 0;
};

// What the run of a spec computes and holds, found without taking any of it.
struct MemoryNeeds {
  Program program;  // of one micro-batch
  std::vector<MemoryClass> classes;
  int64_t checkpoint_copy_bytes = 0;  // more while a checkpoint is written beside training, if free

  int64_t total_bytes() const;
};
// Throws what the run would throw for the same faults; kResourceExhausted with the numbers when
// `train.remat` auto finds no way below resources.memory_max_bytes.
MemoryNeeds FindMemoryNeeds(const TrainSpec& spec, const ModelFiles& files);

// The spec's rematerialisation, for kAuto with the bytes that activations may have: as given, or
// what resources.memory_max_bytes leaves beside everything else.
RematOptions RematFor(const TrainSpec& spec, const ModelFiles& files);

}  // namespace tandem::training
