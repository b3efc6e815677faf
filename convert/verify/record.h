#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "convert/spec/spec.h"
#include "convert/verify/certificate.h"
#include "engine/io/content_hash.h"

namespace tandem::convert {

struct RecordContext {
  std::string job = {};                  // its id; empty: none
  std::filesystem::path cache_dir = {};  // where hashes are remembered; empty: nowhere
  std::function<void()> progress = {};   // called now and then; what it throws ends the conversion
  std::string merge_json = {};           // MergeReportText of an adapter; else empty
  std::string report_json = {};          // what the format tells of what it wrote; else empty
  engine::FileHashes file_hashes = {};   // of the result's files, as far as they are known
  uint64_t inode = 0;                    // of a file that the record lies beside; 0: of a directory
};

// convert.json: which tensors of how many bytes (as they lie in its files) `spec` has made as
// `result`, when, by what, of which parents with which content, the certificate, and of an adapter
// how it was merged. What the format tells of it is there under the format's name.
// Parents are named without their paths, and have the record that they have themselves, trimmed
// (provenance.h). Reads the parents' weights unless their hashes are remembered; what cannot be
// hashed says why.
std::string RecordText(const ConvertSpec& spec, const std::filesystem::path& result,
                       const Certificate& certificate, const RecordContext& context);

// Adds what the record says of parents, hashes and certificate to the manifest of a checkpoint of
// ours in `dir`; does nothing where there is none.
void AddToManifest(const std::filesystem::path& dir, const std::string& record);

}  // namespace tandem::convert
