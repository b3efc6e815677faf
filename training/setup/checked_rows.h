#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "training/data/row_source.h"

namespace tandem::training {

// What a look at every row has found, kept beside a run, so that one that goes on with the same
// files and settings need not look again. Only of files whose every row is one sample: then the
// counts are all there is to know.

// Equal for the same rows: names, sizes and times of the files, and `settings`, a text of
// everything else that samples depend on. Empty where a file cannot be looked at.
std::string KeyOfRows(const std::vector<std::filesystem::path>& files, const std::string& settings);

// Nothing where there is no record, or one of other rows.
std::optional<DataReport> ReadCheckedRows(const std::filesystem::path& path,
                                          const std::string& key);
// Where it cannot be written the rows are checked again next time.
void WriteCheckedRows(const std::filesystem::path& path, const std::string& key,
                      const DataReport& report);

}  // namespace tandem::training
