#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/program/program.h"
#include "training/spec.h"

namespace tandem::training {

// Bytes of parameters with what training keeps for each: master (4 bytes, split or whole), panels,
// and for trained ones two moments and the gradient. The base of an adapter has panels alone.
int64_t StateBytes(const TrainSpec& spec, const std::vector<engine::WeightSpec>& weights,
                   const std::vector<bool>& trained);

// The spec's rematerialisation, for kAuto with the bytes that activations may have: as given, or
// what resources.memory_max_bytes leaves after the parameters and the rest of the process.
// `trained` empty: all; `adapters` are the weights that lora adds.
RematOptions RematFor(const TrainSpec& spec, const std::vector<engine::WeightSpec>& weights,
                      std::vector<bool> trained, const std::vector<engine::WeightSpec>& adapters);

// A table of all policies: bytes of the arena and FLOPs of recomputation.
std::string DescribePolicies(const engine::FamilySpec& family, const engine::ModelConfig& config,
                             RecordOptions record);

// What `tandem plan` prints: the program with bytes and FLOPs, the parameters, the memory.
std::string DescribePlan(const TrainSpec& spec);

}  // namespace tandem::training
