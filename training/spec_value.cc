#include "training/spec_value.h"

#include <charconv>
#include <cmath>

namespace tandem::training {

const std::string& Scalar(const GivenValue& given) {
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

}  // namespace tandem::training
