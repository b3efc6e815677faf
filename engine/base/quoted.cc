#include "engine/base/quoted.h"

#include "engine/base/utf8.h"

namespace tandem {

std::string Quoted(std::string_view text, size_t longest) {
  std::string out = "'";
  size_t i = 0;
  while (i < text.size() && i < longest) {
    const Utf8Unit unit = NextUtf8(text.substr(i));
    const bool control = static_cast<unsigned char>(text[i]) < 0x20 || text[i] == 0x7F;
    if (unit.kind == Utf8Kind::kWhole && !control) {
      out += text.substr(i, unit.size);
    } else {
      out += '?';
    }
    i += unit.size;
  }
  if (i < text.size()) out += "…";
  return out + "'";
}

}  // namespace tandem
