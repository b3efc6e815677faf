#include "engine/chat/jinja/time.h"

#include <locale.h>
#include <time.h>

namespace tandem::engine {
namespace {

// Directives of Python's documentation and the usual glibc ones. Widths and flags other than '-'
// are excluded: glibc would pad to any width.
constexpr std::string_view kDirectives = "aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyY";
constexpr size_t kMaxFormatBytes = 256;

}  // namespace

Value StrftimeNow(Runtime& rt, const Arguments& arguments) {
  const auto bound = Bind(rt, arguments, "strftime_now", {"format"}, 1);
  const Text& format = RequireText(rt, *bound[0], "strftime_now's format");
  if (format.size() > kMaxFormatBytes) {
    rt.Fail("strftime_now: the format exceeds " + std::to_string(kMaxFormatBytes) + " bytes");
  }
  static const locale_t c_locale = newlocale(LC_ALL_MASK, "C", nullptr);
  const time_t now = rt.now_unix_s();
  struct tm fields {};
  gmtime_r(&now, &fields);

  const std::string_view bytes = format.bytes();
  TextBuilder out(rt);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool client = format.ClientAt(i);
    if (bytes[i] != '%' || i + 1 >= bytes.size()) {
      out.Append(bytes.substr(i, 1), client);
      continue;
    }
    std::string directive = "%";
    ++i;
    if (bytes[i] == '-' && i + 1 < bytes.size()) directive += bytes[i++];
    directive += bytes[i];
    if (bytes[i] == '%') {
      out.Append("%", client);
    } else if (bytes[i] == 'f') {
      out.Append("000000", client);
    } else if (bytes[i] == 'z' || bytes[i] == 'Z') {
      // Python's naive times have no zone and print none.
    } else if (kDirectives.find(bytes[i]) != std::string_view::npos) {
      char buffer[128];
      const size_t written =
          strftime_l(buffer, sizeof(buffer), directive.c_str(), &fields, c_locale);
      out.Append(std::string_view(buffer, written), client);
    } else {
      rt.Fail("strftime_now: unknown directive");
    }
  }
  return Value::Of(out.Take());
}

}  // namespace tandem::engine
