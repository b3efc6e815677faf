#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "training/data/row_source.h"

namespace tandem::training {

// Cached result of the check of all rows. A resumed run with unchanged files and settings skips the
// check. Cached only for files in which every row is one sample: the counts then say everything.

// Hash of the files' names, sizes and modification times and of `settings`, a text of everything
// else that samples depend on. Empty when a file cannot be read.
std::string KeyOfRows(const std::vector<std::filesystem::path>& files, const std::string& settings);

// Absent when there is no record, or it has another key.
std::optional<DataReport> ReadCheckedRows(const std::filesystem::path& path,
                                          const std::string& key);
// Ignores failures; the next run then checks the rows again.
void WriteCheckedRows(const std::filesystem::path& path, const std::string& key,
                      const DataReport& report);

}  // namespace tandem::training
