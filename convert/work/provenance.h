#pragma once

#include <filesystem>
#include <string>

namespace tandem::convert {

// The file of a directory that says where what is in it comes from: kRecordFile of conversions,
// kTrainingFile of what was trained by a job. Of a single file it is `<file>.convert.json`.
inline constexpr const char* kRecordFile = "convert.json";
inline constexpr const char* kTrainingFile = "training.json";
std::filesystem::path RecordBeside(const std::filesystem::path& file);

// What a model directory, adapter directory or file says of where it comes from, a JSON object; its
// `parents` may have a `provenance` each. Empty: nothing is said. The record may be anybody's: it
// is read up to 1 MiB, and only the fields that README.md lists are taken from it, of their types,
// texts up to 256 bytes, kMostParents parents in all, kMostGenerations deep; where more was there
// it says "truncated": true. Throws kDataLoss naming file and byte where there is no JSON object,
// kIo.
inline constexpr int kMostGenerations = 4;
inline constexpr int kMostParents = 32;
std::string ReadProvenance(const std::filesystem::path& model);
// The same of a record's text; `source` names it in messages.
std::string TrimProvenance(const std::string& text, const std::string& source);

}  // namespace tandem::convert
