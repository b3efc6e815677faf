#include "training/spec/spec_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tandem::training {

const std::string& ScalarText(const GivenValue& given) {
  if (given.is_list) throw BadValue("must be a single value, not a list");
  return given.words[0];
}

double ParseNumber(const std::string& word) {
  double value = 0;
  const char* end = word.data() + word.size();
  const auto [stop, failed] = std::from_chars(word.data(), end, value);
  if (failed != std::errc() || stop != end || !std::isfinite(value)) {
    throw BadValue("must be a number, got \"" + word + "\"");
  }
  return value;
}

int64_t ParseInteger(const std::string& word) {
  const double value = ParseNumber(word);
  if (value != std::floor(value) || std::abs(value) > 0x1p53) {
    throw BadValue("must be a whole number, got " + word);
  }
  return static_cast<int64_t>(value);
}

bool ParseBool(const std::string& word) {
  if (word == "true" || word == "True" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "False" || word == "no" || word == "off") return false;
  throw BadValue("must be true or false, got \"" + word + "\"");
}

std::string ShowNumber(double value) {
  char text[32];
  const auto [end, failed] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

void CheckRange(double value, double min, double max) {
  if (value >= min && value <= max) return;
  throw BadValue("must be in [" + ShowNumber(min) + ", " + ShowNumber(max) + "], got " +
                 ShowNumber(value));
}

std::string ShowRange(const char* what, double min, double max) {
  return std::string(what) + " from " + ShowNumber(min) + " to " + ShowNumber(max);
}

std::string ShowList(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "[" : ", ").append(word);
  return text.empty() ? "" : text + "]";
}

std::string JoinPaths(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : ";").append(word);
  return text;
}

std::vector<std::string> ParseNames(const GivenValue& given) {
  constexpr std::string_view kPadding = " \t'\"";
  std::vector<std::string> names = given.words;
  if (!given.is_list && names[0].starts_with("[")) {
    if (!names[0].ends_with("]")) throw BadValue("must be a list of names, got " + names[0]);
    const std::string inside = names[0].substr(1, names[0].size() - 2);
    names.clear();
    for (size_t from = 0; from <= inside.size();) {
      const size_t comma = std::min(inside.find(',', from), inside.size());
      std::string name = inside.substr(from, comma - from);
      name.erase(0, std::min(name.find_first_not_of(kPadding), name.size()));
      name.erase(name.find_last_not_of(kPadding) + 1);
      names.push_back(std::move(name));
      from = comma + 1;
    }
  }
  for (const std::string& name : names) {
    if (name.empty()) throw BadValue("must not have an empty column name");
  }
  return names;
}

}  // namespace tandem::training
