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

// An adapter put into the weights of its base: W + scale B A, summed in f32 and rounded once, to
// the type that the base has the weight in, or that is asked for. All other weights stay what they
// are, bit for bit, where their type stays.

struct MergeOptions {
  // config.json, and what else lies beside the weights. Its dtype becomes theirs.
  std::map<std::string, std::string> texts;
  std::filesystem::path cache_dir;  // of packed weights, for the comparison
  std::optional<DType> dtype = {};  // of all weights; unset: each as the base has it
  IfThere if_there = IfThere::kRefuse;
  // Called with how many weights of how many are written, and now and then while the result is
  // compared; what it throws ends the merging.
  std::function<void(int64_t done, int64_t total)> progress = {};
};

// What was merged, and how far the result is from the base with the adapter beside it.
struct MergeReport {
  std::string dtype;  // of the merged weights: "bf16"
  int64_t layers = 0;
  int64_t tensors = 0;
  // Logits of fixed tokens, both computed as the result would be served.
  int64_t positions = 0;
  double max_abs_difference = 0;
  double bound = 0;             // what it may be, see MergeBound
  double moved_by_adapter = 0;  // the largest difference of a logit that the adapter makes
};

// As a share of the largest logit. f32: sums in another order. bf16 and f16: the weights are
// rounded after the adapter's part was added, where beside it that part has bits of its own. Deep
// models carry these roundings on, so half of what the adapter moves is allowed there, too.
double MergeBound(DType dtype);

// Throws kInvalidArgument, naming the first weight and what to do instead, when the base keeps
// weights in blocks of integers: what is added to one weight of a block would round all others
// anew.
void RefuseMergeIntoBlocks(const ModelDir& base);

// config.json with the type of weights, whatever was computed in before.
std::string ConfigWithDType(const std::string& config, DType dtype);

// Writes the merged model as a Hugging Face directory, which must not exist yet unless it may be
// replaced, with merge.json (the report); published atomically, or not at all. Reads and writes one
// weight at a time. Throws as FindModules and RefuseMergeIntoBlocks; kIo when there is not enough
// room, before anything is written; kDataLoss naming the weight when a value is not finite, and
// when the logits differ by more than the bound.
MergeReport MergeAdapter(const ModelDir& base, const LoraAdapter& adapter,
                         const MergeOptions& options, const std::filesystem::path& dir,
                         OpsContext& ops);

// The report's JSON text.
std::string MergeReportText(const MergeReport& report);

}  // namespace tandem::engine
