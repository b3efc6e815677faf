#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "convert/spec/spec.h"
#include "convert/verify/certificate.h"
#include "engine/io/content_hash.h"

namespace tandem::convert {

struct RecordContext {
  std::string job = {};                  // job id; empty: none
  std::filesystem::path cache_dir = {};  // for remembered hashes; empty: none
  std::function<void()> progress = {};   // called now and then; a throw ends the conversion
  std::string merge_json = {};           // MergeReportText of an adapter; else empty
  std::string report_json = {};          // the format's report; else empty
  engine::FileHashes file_hashes = {};   // known hashes of the result's files
  uint64_t inode = 0;                    // of the result if it is a single file; 0: a directory
};

// Returns the text of convert.json for `result`, made by `spec`. It has the number of tensors and
// their bytes in the files, the time, the producer, parents, hashes and certificate. The merge
// report and the format's report are added if there are any.
//
// Parents are named without paths and carry their own records, trimmed (provenance.h). Reads the
// parents' weights unless their hashes are remembered; a parent that cannot be hashed has a reason.
std::string RecordText(const ConvertSpec& spec, const std::filesystem::path& result,
                       const Certificate& certificate, const RecordContext& context);

// Copies parents, hashes and certificate of the record into `dir`'s checkpoint manifest, if it has
// one.
void AddToManifest(const std::filesystem::path& dir, const std::string& record);

}  // namespace tandem::convert
