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

// How far what was written is from what it was made of: both are run on the same token ids, as the
// server would compute them, one after the other.
struct Certificate {
  enum class State {
    kMeasured,
    kNotMeasured,  // could not be: `reason`
    kOff,          // was not to be
  };
  State state = State::kOff;
  std::string reason = {};
  // Of kMeasured.
  std::string compute = {};    // "f32" when one of the two keeps its weights in f32, else "bf16"
  int64_t windows = 0;         // runs of tokens that know nothing of each other
  bool equal_tensors = false;  // of directories, bit for bit: then nothing may differ
  engine::LogitDistance distance = {};
};

// The text, a JSON object, of records and results.
std::string CertificateJson(const Certificate& certificate);

struct CertifyContext {
  std::filesystem::path work_dir;   // for what is needed meanwhile
  std::filesystem::path cache_dir;  // of packed weights; empty: none
  std::function<void()> progress;   // called now and then; what it throws ends the conversion
  engine::OpsContext& ops;
  int64_t memory_bytes = AvailableMemoryBytes();  // what one of the models may take
};

// Certifies what `spec` has made as `result`, a directory or file that is not published yet; an
// adapter that was made of a model is run beside its base. A result
// that the engine does not open itself is written once more, as a Hugging Face directory in
// `work_dir`, and removed; so is such a source of an adapter or of a file, which are not compared
// bit for bit. What makes a measurement impossible becomes the reason: any other source that is
// not run here, memory, disk. Throws kDataLoss, naming the figure, when the result says something
// else with tensors that are the same, has logits that are no numbers, or is farther away than
// spec.max_kl; kUnsupported when there is a max_kl and nothing to hold to it.
Certificate Certify(const ConvertSpec& spec, const std::filesystem::path& result,
                    const CertifyContext& context);

}  // namespace tandem::convert
