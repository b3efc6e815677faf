#include "engine/chat/answers/custom_input.h"

#include <nlohmann/json.hpp>

#include "engine/base/attempt.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string Unescape(const std::string& escape) {
  std::string out(kReplacement);
  ErrorOf([&] { out = ParseUntrustedJson('"' + escape + '"', "input").get<std::string>(); });
  return out;
}

bool IsHighSurrogate(std::string_view escape) {
  if (escape.size() != 6 || (escape[2] != 'd' && escape[2] != 'D')) return false;
  return std::string_view("89abAB").find(escape[3]) != std::string_view::npos;
}

}  // namespace

std::string CustomInput::Push(std::string_view arguments) {
  std::string out;
  for (const char byte : arguments) Next(byte, out);
  return out;
}

void CustomInput::Next(char byte, std::string& out) {
  const bool is_member = scanner_.depth() == 1;
  const bool expected_value = is_member && scanner_.expects_value();
  const bool was_in_key = is_member && scanner_.is_in_key();
  scanner_.Feed(byte);
  const bool is_in_key = scanner_.depth() == 1 && scanner_.is_in_key();
  if (was_in_key && is_in_key) key_.push_back(byte);
  if (!was_in_key && is_in_key) key_.clear();
  if (expected_value && !scanner_.expects_value()) {
    is_in_value_ = key_ == "input" && !is_done_;
    is_text_ = byte == '"';
    if (is_in_value_ && is_text_) return;
  }
  if (!is_in_value_) return;
  const bool is_outside = scanner_.depth() <= 1;
  // A number ends at the byte after it; other values with their own last byte.
  const bool is_behind = scanner_.depth() == 0 || (is_outside && !is_text_ && byte == ',');
  const bool is_last = is_outside && scanner_.expects_comma();
  if (is_text_ && !is_last) InText(byte, out);
  if (is_text_ && is_last && !escape_.empty()) out += kReplacement;
  if (!is_text_ && !is_behind) out.push_back(byte);
  is_in_value_ = !is_behind && !is_last;
  is_done_ = !is_in_value_;
}

void CustomInput::InText(char byte, std::string& out) {
  if (escape_.empty()) {
    byte == '\\' ? escape_.push_back(byte) : out.push_back(byte);
    return;
  }
  // The second half of a surrogate pair is an escape of its own.
  if (escape_.size() == 6 && byte != '\\') {
    out += kReplacement;
    escape_.clear();
    return InText(byte, out);
  }
  escape_.push_back(byte);
  if (escape_.size() == 8 && byte != 'u') {
    out += kReplacement;
    escape_.erase(0, 6);
  }
  if (escape_[1] != 'u' ? escape_.size() < 2 : escape_.size() != 6 && escape_.size() != 12) return;
  if (IsHighSurrogate(escape_)) return;
  out += Unescape(escape_);
  escape_.clear();
}

}  // namespace tandem::engine
