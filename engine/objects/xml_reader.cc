#include "engine/objects/xml_reader.h"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "engine/base/error.h"
#include "engine/base/utf8.h"

namespace tandem::engine {
namespace {

constexpr int kMaxXmlDepth = 16;
constexpr size_t kMaxXmlElements = 100'000;
constexpr size_t kMaxXmlName = 256;
constexpr size_t kMaxXmlReference = 12;
constexpr std::string_view kXmlSpaces = " \t\r\n";

[[noreturn]] void ThrowXml(const std::string& why, size_t at) {
  throw Error(ErrorCode::kDataLoss,
              "the response is not valid XML at byte " + std::to_string(at) + ": " + why);
}

class XmlParser {
 public:
  explicit XmlParser(std::string_view text) : text_(text) {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
  }

  XmlElement Document() {
    SkipBetween();
    XmlElement root = Element(1);
    SkipBetween();
    if (at_ != text_.size()) ThrowXml("more than one root element", at_);
    return root;
  }

 private:
  bool Starts(std::string_view what) const { return text_.substr(at_).starts_with(what); }

  // Moves behind the next `mark`.
  void SkipPast(std::string_view mark) {
    const size_t found = text_.find(mark, at_);
    if (found == std::string_view::npos) ThrowXml("it ends too early", text_.size());
    at_ = found + mark.size();
  }

  void SkipSpaces() { at_ = std::min(text_.find_first_not_of(kXmlSpaces, at_), text_.size()); }

  // Skips spaces, processing instructions and comments outside the root.
  void SkipBetween() {
    for (;;) {
      SkipSpaces();
      if (Starts("<?")) {
        SkipPast("?>");
      } else if (Starts("<!--")) {
        SkipPast("-->");
      } else {
        return;
      }
    }
  }

  std::string Name() {
    const size_t end = std::min(text_.find_first_of("<>/=\"'& \t\r\n", at_), text_.size());
    std::string_view name = text_.substr(at_, end - at_);
    if (name.empty() || name.size() > kMaxXmlName) ThrowXml("a name is missing or too long", at_);
    at_ = end;
    return std::string(name);
  }

  // Reads attributes up to ">" or "/>". Returns whether the element is empty.
  bool SkipAttributes() {
    for (;;) {
      SkipSpaces();
      if (Starts("/>")) {
        at_ += 2;
        return true;
      }
      if (Starts(">")) {
        at_ += 1;
        return false;
      }
      Name();
      SkipSpaces();
      if (!Starts("=")) ThrowXml("an attribute without a value", at_);
      ++at_;
      SkipSpaces();
      if (!Starts("\"") && !Starts("'")) ThrowXml("an attribute without quotes", at_);
      const std::string_view quote = text_.substr(at_++, 1);
      SkipPast(quote);
    }
  }

  void Reference(std::string& out) {
    const size_t begin = at_ + 1;
    const size_t end = text_.find(';', begin);
    if (end == std::string_view::npos || end - begin > kMaxXmlReference) {
      ThrowXml("an '&' that begins no reference", at_);
    }
    const std::string_view name = text_.substr(begin, end - begin);
    at_ = end + 1;
    if (name == "amp") return out.push_back('&');
    if (name == "lt") return out.push_back('<');
    if (name == "gt") return out.push_back('>');
    if (name == "quot") return out.push_back('"');
    if (name == "apos") return out.push_back('\'');
    if (!name.starts_with('#')) ThrowXml("an unknown entity", begin);
    const bool is_hex = name.starts_with("#x");
    const std::string_view digits = name.substr(is_hex ? 2 : 1);
    uint32_t code = 0;
    const auto [stop, fault] =
        std::from_chars(digits.data(), digits.data() + digits.size(), code, is_hex ? 16 : 10);
    if (fault != std::errc() || stop != digits.data() + digits.size() || code == 0 ||
        code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
      ThrowXml("a wrong character reference", begin);
    }
    AppendUtf8(code, out);
  }

  XmlElement Element(int depth) {
    if (depth > kMaxXmlDepth) ThrowXml("elements are nested too deep", at_);
    if (++n_elements_ > kMaxXmlElements) ThrowXml("too many elements", at_);
    if (!Starts("<")) ThrowXml("expected an element", at_);
    ++at_;
    const std::string full_name = Name();
    XmlElement element;
    element.name = full_name.substr(full_name.find(':') + 1);
    if (SkipAttributes()) return element;
    for (;;) {
      if (at_ >= text_.size()) ThrowXml("it ends too early", at_);
      if (Starts("</")) {
        at_ += 2;
        if (Name() != full_name) ThrowXml("an end tag that does not match", at_);
        SkipSpaces();
        if (!Starts(">")) ThrowXml("an end tag that does not end", at_);
        ++at_;
        return element;
      }
      if (Starts("<!--")) {
        SkipPast("-->");
      } else if (Starts("<?")) {
        SkipPast("?>");
      } else if (Starts("<")) {
        element.children.push_back(Element(depth + 1));
      } else if (Starts("&")) {
        Reference(element.text);
      } else {
        const size_t end = std::min(text_.find_first_of("<&", at_), text_.size());
        element.text.append(text_.substr(at_, end - at_));
        at_ = end;
      }
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
  size_t n_elements_ = 0;
};

}  // namespace

const XmlElement* XmlElement::Find(std::string_view child) const {
  for (const XmlElement& element : children) {
    if (element.name == child) return &element;
  }
  return nullptr;
}

std::string XmlElement::TextOf(std::string_view child) const {
  const XmlElement* found = Find(child);
  return found == nullptr ? std::string() : found->text;
}

XmlElement ParseXml(std::string_view text) { return XmlParser(text).Document(); }

std::string XmlEscaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace tandem::engine
