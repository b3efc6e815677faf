#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "convert/spec/spec.h"
#include "engine/base/job_context.h"
#include "engine/ops/ops_context.h"

namespace tandem::convert {

struct ConvertResult {
  std::string path;  // file name of the target
  std::string format;
  std::string dtype;    // of the largest tensor; for a single file, spec.dtype if given
  int64_t bytes = 0;    // of all tensors; encoded bytes for a single file
  int64_t tensors = 0;  // parts of a stack of experts count one by one
  double seconds = 0;
  std::string merge_json;        // MergeReportText of an adapter; else empty
  std::string certificate_json;  // CertificateJson
  std::string report_json;       // the format's report (formats.h); else empty
};
std::string ConvertResultJson(const ConvertResult& result);

// Runs the conversion; the target appears whole or not at all. `context.dir` names the job, if
// there is one. A job killed after publishing its target finds it done when restarted. A stopped
// job keeps its work directory for the next call (work_dir.h). Throws like CheckConvertSpec and
// Certify, kCancelled when asked to stop, and kDataLoss, kIo or kUnsupported naming file and
// tensor.
ConvertResult Convert(const ConvertSpec& spec, const JobContext& context, engine::OpsContext& ops);

}  // namespace tandem::convert
