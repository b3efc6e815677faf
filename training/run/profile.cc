#include "training/run/profile.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <vector>

#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "training/observe/roof.h"
#include "training/run/process_memory.h"
#include "training/run/run_metrics.h"
#include "training/setup/run_parts.h"
#include "training/setup/teacher_rows.h"

namespace tandem::training {
namespace {

// Resets the peak memory of the process to its present use.
void ResetPeak() { std::ofstream("/proc/self/clear_refs") << "5\n"; }

}  // namespace

ProfileRow ProfileSpec(const TrainSpec& spec, const ProfileOptions& options,
                       const std::filesystem::path& cache_dir) {
  // Returns memory that an earlier profile freed to the system; otherwise this profile would appear
  // to need less.
  malloc_trim(0);
  ResetPeak();
  const int64_t before = StatusBytes("VmRSS");
  JobContext context;
  context.cache_dir = cache_dir;
  RunParts parts(spec, context);
  InitialWeights(parts);
  parts.trainer.MastersChanged();

  std::vector<MicroBatch> batches(static_cast<size_t>(spec.batches_per_step()));
  std::vector<double> seconds;
  ProgressTask task("measuring steps", "steps", options.warmup + options.steps);
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    const auto from = std::chrono::steady_clock::now();
    if (!NextBatches(parts, batches)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the data end after " + std::to_string(step) +
                      " steps: raise data.num_epoch, or lower --steps or --warmup");
    }
    if (spec.is_distill()) {  // a measurement needs no teacher
      const int64_t k = std::min(spec.distill.loss.top_k, parts.files.config.vocab_size);
      for (MicroBatch& batch : batches) FillEvenTeacherRows(k, &batch);
    }
    parts.trainer.Step(batches);
    task.Add(1);
    const auto took = std::chrono::steady_clock::now() - from;
    if (step >= options.warmup) seconds.push_back(std::chrono::duration<double>(took).count());
  }
  std::sort(seconds.begin(), seconds.end());

  ProfileRow row;
  row.step_seconds = seconds[seconds.size() / 2];
  row.tokens_per_second = TokensPerStep(spec) / row.step_seconds;
  row.tflops = StepTflop(parts) / row.step_seconds;
  row.roof_flops =
      options.roof_flops > 0 ? options.roof_flops : RoofFlops(parts.ops, spec.compute, {});
  row.mfu = row.tflops * 1e12 / row.roof_flops;
  row.predicted_bytes = parts.trainer.parameters().bytes() + parts.trainer.program().arena_bytes;
  const auto& base = parts.trainer.base();
  if (base && !base->is_mapped()) row.predicted_bytes += base->weight_bytes();
  row.measured_bytes = std::max<int64_t>(0, StatusBytes("VmHWM") - before);
  return row;
}

std::vector<std::string> SweepWords(const std::string& sweep) {
  const size_t equals = sweep.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == sweep.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                "\"" + sweep + "\": a sweep must be key=value,value,…");
  }
  std::vector<std::string> words;
  std::istringstream values(sweep.substr(equals + 1));
  for (std::string value; std::getline(values, value, ',');) {
    words.push_back(sweep.substr(0, equals + 1) + value);
  }
  return words;
}

}  // namespace tandem::training
