#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

namespace tandem::server {

// The texts that a user has entered, oldest first, and a file of them: one JSON string per line,
// mode 0600. Several processes may append to one file. Without a file the history lasts as long as
// the object. One thread.
class LineHistory {
 public:
  static constexpr size_t kMaxEntries = 1000;

  LineHistory() = default;
  // Reads the file if it exists, and makes its private directory. Ignores lines that are no JSON
  // strings. A file that is not a regular file of this user, or cannot be read, is not used;
  // fault() then says why.
  explicit LineHistory(std::filesystem::path file);

  const std::vector<std::string>& entries() const { return entries_; }
  const std::string& fault() const { return fault_; }

  // Appends an entry. An empty text, or the last entry once more, changes nothing.
  void Add(const std::string& text);

 private:
  void Read();
  void Append(const std::string& text);
  void Rewrite();

  std::filesystem::path file_;  // empty: none
  std::vector<std::string> entries_;
  std::string fault_;
};

// $XDG_STATE_HOME/tandem/history or ~/.local/state/tandem/history; empty without a home.
std::filesystem::path DefaultHistoryFile();

}  // namespace tandem::server
