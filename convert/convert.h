#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert/spec/spec.h"
#include "engine/base/job_context.h"
#include "engine/ops/ops_context.h"

namespace tandem::convert {

struct ConvertResult {
  std::string path;  // the target's own name
  std::string format;
  std::string dtype;  // of the largest tensor
  int64_t bytes = 0;  // of all tensors
  int64_t tensors = 0;
  double seconds = 0;
  std::string merge_json;        // MergeReportText of an adapter; else empty
  std::string certificate_json;  // CertificateJson
  std::string report_json;       // what the format tells of what it wrote (formats.h); else empty
};
std::string ConvertResultJson(const ConvertResult& result);

// Does what the spec says, or leaves nothing. `context.dir` names the job, if there is one: one
// that was ended between publishing its target and saying so finds it done, and one that is stopped
// leaves what the next call goes on with (RemoveUnfinished, work_dir.h). Throws as
// CheckConvertSpec, kCancelled when asked to stop, and kDataLoss / kIo / kUnsupported naming file
// and tensor, and as Certify.
ConvertResult Convert(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops);

}  // namespace tandem::convert
