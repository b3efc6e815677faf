#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "training/setup/run_parts.h"
#include "training/setup/validation_set.h"

namespace tandem::training {

// What preference optimisation compares a model with: the log-probabilities that it gave to all
// pairs before it was trained, adapter of lora.load_path included. They are computed once, dropout
// off, and kept in the run's directory (README.md has the format), by what they depend on: weights
// and adapter the run begins with, pairs and how they are cut. Trained weights never make them.
struct ReferenceJob {
  RunParts& parts;
  ValidationSet* validation = nullptr;  // null: none
  std::filesystem::path dir;            // of the run
  std::filesystem::path cache_dir;      // of hashes; may be empty
  bool resumes = false;                 // weights that were trained will be restored
  std::stop_token stop;
  std::function<void(const std::string&)> report;
  std::function<void(const std::string&)> warn;
};

// Reads or computes it, and puts it into parts.reference and the batches of `validation`. For
// computing, the parameters become those that the run begins with: returns whether they have. When
// told to stop it leaves parts.reference empty and writes nothing half. Throws kInvalidArgument
// when the run that is resumed began with other weights than the spec names now.
bool PrepareReference(const ReferenceJob& job);

}  // namespace tandem::training
