#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "engine/adapter/lora_adapter.h"
#include "engine/formats/model_dir.h"
#include "engine/io/atomic_write.h"
#include "engine/ops/ops_context.h"
#include "engine/tensor/dtype.h"

namespace tandem::engine {

// Merges an adapter into the weights of its base: W + scale B A, summed in f32 and rounded once to
// the base's stored dtype or the requested one. All other weights stay bit-identical if their dtype
// stays.

struct MergeOptions {
  // config.json and the other text files of the base directory. The new dtype is written into
  // config.json.
  std::map<std::string, std::string> texts;
  std::filesystem::path cache_dir;  // of packed weights, for the comparison
  std::optional<DType> dtype = {};  // of all weights; unset: the base's dtype of each
  IfThere if_there = IfThere::kRefuse;
  // Called with the number of written weights and of all weights, and repeatedly during the
  // comparison. An exception cancels the merge.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// A summary of the merge, and the distance between the merged model and base plus adapter.
struct MergeReport {
  std::string dtype;  // of the merged weights: "bf16"
  int64_t layers = 0;
  int64_t tensors = 0;
  // Logits of fixed tokens, both models computed as they would be served.
  int64_t positions = 0;
  double max_abs_difference = 0;
  double bound = 0;             // the largest allowed difference, see MergeBound
  double moved_by_adapter = 0;  // the largest difference of a logit with and without the adapter
};

// The allowed share of the largest logit. f32 differs only by the order of sums. In bf16 and f16
// the merged weights are rounded after the adapter's part is added, whereas a separate adapter
// keeps its own bits. Deep models amplify these roundings, so MergeAdapter then allows at least
// half of the adapter's own effect.
double MergeBound(DType dtype);

// Throws kInvalidArgument, naming the first weight and the alternative, when the base keeps weights
// in blocks of integers. Adding to one weight of a block would round all others again.
void RefuseMergeIntoBlocks(const ModelDir& base);

// config.json with the dtype of the merged weights, for any previous value.
std::string ConfigWithDType(const std::string& config, DType dtype);

// Writes the merged model as a Hugging Face directory, with merge.json (the report); publishes it
// atomically or not at all. The directory must not exist unless `if_there` allows replacement.
// Reads and writes one weight at a time. Throws as FindModules, FindSaved and
// RefuseMergeIntoBlocks; kUnsupported when the adapter changes one use of a tied table; kIo
// before writing when disk space is insufficient. Throws kDataLoss naming the weight when a value
// is not finite, and kDataLoss when the logits differ by more than the bound.
MergeReport MergeAdapter(const ModelDir& base, const LoraAdapter& adapter,
                         const MergeOptions& options, const std::filesystem::path& dir,
                         OpsContext& ops);

// The report's JSON text.
std::string MergeReportText(const MergeReport& report);

}  // namespace tandem::engine
