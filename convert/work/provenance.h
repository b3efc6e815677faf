#pragma once

#include <filesystem>
#include <string>

namespace tandem::convert {

// Provenance records: kRecordFile lies in a converted directory, kTrainingFile in the output of a
// training job. The record of a single file is `<file>.convert.json`.
inline constexpr const char* kRecordFile = "convert.json";
inline constexpr const char* kTrainingFile = "training.json";
std::filesystem::path RecordBeside(const std::filesystem::path& file);

// Returns the file that ReadProvenance reads, or an empty path.
std::filesystem::path FindRecord(const std::filesystem::path& model);
// Returns the provenance of a model directory, adapter directory or file as a JSON object, or an
// empty string if it has none. Each of its `parents` may have a `provenance` of its own.
//
// The record is untrusted: only the fields listed in README.md are kept, if their type is right.
// Limits are 256 bytes per text, kMostParents parents in all and kMostGenerations generations;
// "truncated": true marks a record that was cut. Throws kIo, and kDataLoss for a record of more
// than 1 MiB or without a JSON object (naming file and byte).
inline constexpr int kMostGenerations = 4;
inline constexpr int kMostParents = 32;
std::string ReadProvenance(const std::filesystem::path& model);
// Trims a record given as text; `source` names it in messages.
std::string TrimProvenance(const std::string& text, const std::string& source);

}  // namespace tandem::convert
