#include "server/cli/remote/table.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "server/terminal/display_width.h"
#include "server/terminal/terminal.h"
#include "server/terminal/visible_text.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kGap = 2;
constexpr size_t kMaxCellBytes = 400;
constexpr const char* kAbsent = "-";

}  // namespace

void TextTable::Print() const {
  std::vector<std::vector<std::string>> shown;
  std::vector<int64_t> widths(rows_.front().size(), 0);
  for (const std::vector<std::string>& row : rows_) {
    std::vector<std::string>& cells = shown.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      cells.push_back(VisibleLine(row[i], kMaxCellBytes));
      widths[i] = std::max(widths[i], DisplayWidth(cells.back()));
    }
  }
  const bool is_terminal = IsTerminal(STDOUT_FILENO);
  const int64_t columns = TerminalWidth(STDOUT_FILENO);
  for (const std::vector<std::string>& row : shown) {
    std::string line;
    int64_t used = 0;
    for (size_t i = 0; i + 1 < row.size(); ++i) {
      line += FitColumns(row[i], widths[i]) + std::string(kGap, ' ');
      used += widths[i] + kGap;
    }
    const int64_t room = std::max<int64_t>(columns - used, 8);
    const bool is_cut = is_terminal && DisplayWidth(row.back()) > room;
    line += is_cut ? FitColumns(row.back(), room) : row.back();
    while (line.ends_with(' ')) line.pop_back();
    const bool is_head = &row == &shown.front();
    std::puts(Styled(kBold, line, is_head && UseColour(STDOUT_FILENO)).c_str());
  }
}

std::string CellOf(const Json& object, const char* name) {
  if (!object.is_object()) return kAbsent;
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return kAbsent;
  if (found->is_string()) return found->get<std::string>();
  return found->dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string TimeCellOf(const Json& object, const char* name) {
  if (!object.is_object()) return kAbsent;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return kAbsent;
  const auto seconds = static_cast<std::time_t>(found->get<int64_t>());
  std::tm local{};
  char text[32];
  if (localtime_r(&seconds, &local) == nullptr ||
      std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local) == 0) {
    return kAbsent;
  }
  return text;
}

std::string BytesCellOf(const Json& object, const char* name) {
  if (!object.is_object()) return kAbsent;
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return kAbsent;
  double value = found->get<double>();
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

void PrintJson(const Json& json) {
  std::puts(json.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace tandem::server
