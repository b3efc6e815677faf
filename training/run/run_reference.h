#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>

#include "training/setup/run_parts.h"
#include "training/setup/validation_set.h"

namespace tandem::training {

// The reference of preference optimisation: every pair's log-probabilities under the initial model,
// which includes the adapter of lora.load_path. They are computed once, without dropout, and kept
// in the run's directory (format: README.md). Their key covers the initial weights and adapter, the
// pairs and how they are cut. Trained weights never produce them.
struct ReferenceJob {
  RunParts& parts;
  ValidationSet* validation = nullptr;  // null: none
  std::filesystem::path dir;            // of the run
  std::filesystem::path cache_dir;      // of hashes; may be empty
  bool resumes = false;                 // trained weights will be restored later
  std::stop_token stop;
  std::function<void(const std::string&)> report;
  std::function<void(const std::string&)> warn;
};

// Reads or computes the reference and stores it in parts.reference and in the batches of
// `validation`. Returns whether it had to set the parameters to the initial weights for computing.
// On a stop request it leaves parts.reference empty and writes no partial file. All ranks call it
// and get the same result: the first one reads and writes files, and all compute. Throws
// kInvalidArgument when the resumed run began with other weights than the spec names now.
bool PrepareReference(const ReferenceJob& job);

}  // namespace tandem::training
