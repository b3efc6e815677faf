#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::server {

// Prints rows as columns to standard output, with a bold head on a terminal. Cells may be foreign
// text. On a terminal the last column is cut at its width. One thread.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head) : rows_{std::move(head)} {}
  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // REQUIRES: every row has as many cells as the head.
  void Print() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Members of answers for people: "-" for what is absent or null.
std::string CellOf(const nlohmann::ordered_json& object, const char* name);
std::string TimeCellOf(const nlohmann::ordered_json& object, const char* name);   // local time
std::string BytesCellOf(const nlohmann::ordered_json& object, const char* name);  // "1.5 GiB"

// Prints JSON with an indent, valid UTF-8, and a line break.
void PrintJson(const nlohmann::ordered_json& json);

}  // namespace tandem::server
