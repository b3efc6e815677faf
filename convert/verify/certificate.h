#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "convert/spec/spec.h"
#include "engine/base/available_memory.h"
#include "engine/ops/ops_context.h"
#include "engine/tools/logit_distance.h"

namespace tandem::convert {

// Distance of a result from its source. Both are run on the same token ids, one after the other, as
// the server would compute them.
struct Certificate {
  enum class State {
    kMeasured,
    kNotMeasured,  // impossible, see `reason`
    kOff,          // not asked for
  };
  State state = State::kOff;
  std::string reason = {};
  // Only if kMeasured.
  std::string compute = {};  // "f32" if either model keeps its weights in f32, else "bf16"
  int64_t windows = 0;       // independent runs of tokens
  // Source and result are directories with equal tensors, bit for bit. Then logits must be equal.
  bool equal_tensors = false;
  engine::LogitDistance distance = {};
};

// Returns a JSON object for records and results.
std::string CertificateJson(const Certificate& certificate);

struct CertifyContext {
  std::filesystem::path work_dir;   // for temporary files
  std::filesystem::path cache_dir;  // for packed weights; empty: none
  std::function<void()> progress;   // called now and then; a throw ends the conversion
  engine::OpsContext& ops;
  int64_t memory_bytes = AvailableMemoryBytes();  // limit for each of the models
};

// Certifies `result`, the unpublished directory or file that `spec` produced. An extracted adapter
// is run on its base. A result that the engine cannot open is first written to `work_dir` as a
// Hugging Face directory, and removed afterwards. A source that the engine cannot open is written
// out too if the result is an adapter or a single file, which cannot be compared bit for bit.
//
// If measuring is impossible, `reason` says why: the engine cannot run the source, or memory or
// disk is short. Throws kDataLoss naming the figure if equal tensors give different logits, logits
// are not finite or the result exceeds spec.max_kl. Throws kUnsupported if max_kl is set and
// nothing could be measured.
Certificate Certify(const ConvertSpec& spec, const std::filesystem::path& result,
                    const CertifyContext& context);

}  // namespace tandem::convert
