#include "engine/tokenizer/file_errors.h"

#include "engine/base/error.h"
#include "engine/tokenizer/unicode.h"

namespace tandem::engine {
namespace {

constexpr size_t kLongestQuote = 40;

}  // namespace

void ThrowBroken(const std::string& file, std::string_view field, std::string_view what) {
  throw Error(ErrorCode::kDataLoss, file + ": " + std::string(field) + " " + std::string(what));
}

void ThrowUnsupported(const std::string& file, std::string_view field, std::string_view what) {
  throw Error(ErrorCode::kUnsupported, file + ": " + std::string(field) + " " + std::string(what));
}

std::string QuotedSpelling(std::string_view text) {
  std::string out = "'";
  size_t i = 0;
  while (i < text.size() && i < kLongestQuote) {
    const Utf8Unit unit = NextUtf8(text.substr(i));
    const bool control = static_cast<unsigned char>(text[i]) < 0x20 || text[i] == 0x7F;
    if (unit.kind == Utf8Kind::kWhole && !control) {
      out += text.substr(i, unit.size);
    } else {
      out += '?';
    }
    i += unit.size;
  }
  if (i < text.size()) out += "...";
  return out + "'";
}

}  // namespace tandem::engine
