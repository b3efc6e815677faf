#include "engine/chat/answers/lark_text.h"

#include <utility>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

constexpr size_t kMostChargedBytes = size_t{8} << 20;

}  // namespace

std::string LarkText::Named(const std::string& head, const std::string& attribute,
                            const std::string& body) {
  const auto [entry, is_new] = names_.try_emplace(head + attribute + " " + body);
  if (is_new) {
    entry->second = head + std::to_string(names_.size());
    text_ += entry->second;
    text_ += attribute;
    text_ += ": ";
    text_ += body;
    text_ += '\n';
  }
  return entry->second;
}

std::string LarkText::Rule(const std::string& body) { return Named("r", "", body); }
std::string LarkText::Lazy(const std::string& terminal) { return Named("z", "[lazy]", terminal); }
std::string LarkText::Terminal(const std::string& body) { return Named("T", "", body); }

void LarkText::Charge(size_t n_bytes) {
  n_charged_ += n_bytes;
  if (n_charged_ <= kMostChargedBytes) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      "tools have too large schemas for the format of this model's calls: send fewer tools, "
      "or shorter definitions")
      .WithParam("tools")
      .WithReason("unsupported_schema");
}

std::string LarkText::Finish(const std::string& start) const {
  return "start: " + start + "\n" + text_;
}

LarkSequence& LarkSequence::Regex(std::string_view regex) {
  regex_ += regex;
  return *this;
}

LarkSequence& LarkSequence::Text(std::string_view text) { return Regex(RegexOf(text)); }

LarkSequence& LarkSequence::Token(TokenId id) { return Part("<[" + std::to_string(id) + "]>"); }

LarkSequence& LarkSequence::Part(std::string_view part) {
  done_ = str();
  regex_.clear();
  if (part.empty()) return *this;
  if (!done_.empty()) done_ += ' ';
  done_ += part;
  return *this;
}

std::string LarkSequence::str() const {
  if (regex_.empty()) return done_;
  return done_ + (done_.empty() ? "/" : " /") + regex_ + "/";
}

std::string RegexOf(std::string_view text) {
  constexpr std::string_view kMeta = "\\.+*?()|[]{}^$/";
  std::string out;
  for (const char byte : text) {
    if (byte == '\n') {
      out += "\\n";
      continue;
    }
    if (kMeta.find(byte) != std::string_view::npos) out += '\\';
    out += byte;
  }
  return out;
}

std::string TextWithout(std::span<const std::string> marks,
                        std::span<const std::string> beginnings) {
  const std::string any(kAnyText);
  std::string out = "/(.|\\n)+/";
  for (const std::string& mark : marks) out += " & ~/" + any + RegexOf(mark) + any + "/";
  for (const std::string& begin : beginnings) out += " & ~/" + begin + any + "/";
  return out;
}

}  // namespace tandem::engine
