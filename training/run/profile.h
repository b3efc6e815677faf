#pragma once

#include <cstdint>
#include <string>

#include "engine/base/job_context.h"
#include "training/spec/spec.h"

namespace tandem::training {

struct ProfileOptions {
  int64_t warmup = 2;  // steps before the measured ones
  int64_t steps = 5;
  double roof_flops = 0;  // FLOP/s that MFU is relative to; 0: measured
};

struct ProfileRow {
  double step_seconds = 0;  // median
  double tokens_per_second = 0;
  double tflops = 0;  // TFLOP/s, with MaxText's count
  double mfu = 0;
  double roof_flops = 0;
  int64_t predicted_bytes = 0;  // weights, optimiser and activations, as planned
  int64_t measured_bytes = 0;   // growth of the process at its peak
};

// Runs a few steps of a spec, without evaluations, checkpoints or exports. Writes nothing.
ProfileRow ProfileSpec(const TrainSpec& spec, const ProfileOptions& options,
                       const std::filesystem::path& cache_dir);

// Splits "key=a,b" into the words "key=a" and "key=b". Throws kInvalidArgument for any other form.
std::vector<std::string> SweepWords(const std::string& sweep);

}  // namespace tandem::training
