#include "engine/chat/jinja/percent_format.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <string_view>

#include "engine/chat/jinja/access.h"
#include "engine/chat/jinja/print.h"

namespace tandem::engine {
namespace {

// One conversion of a % format: %[flags][width][.precision]letter
struct Conversion {
  std::string flags;
  int width = 0;
  int precision = -1;
  char letter = '\0';
};

Conversion ParseConversion(Runtime& rt, std::string_view bytes, size_t& at) {
  const auto number = [&] {
    int value = 0;
    while (at < bytes.size() && bytes[at] >= '0' && bytes[at] <= '9') {
      value = value * 10 + (bytes[at++] - '0');
      if (value > 1000) rt.Fail("a width in a % format exceeds 1000");
    }
    return value;
  };
  Conversion conversion;
  while (at < bytes.size() && std::string_view("-+ 0#").find(bytes[at]) != std::string_view::npos) {
    conversion.flags.push_back(bytes[at++]);
  }
  conversion.width = number();
  if (at < bytes.size() && bytes[at] == '.') {
    ++at;
    conversion.precision = number();
  }
  if (at >= bytes.size()) rt.Fail("incomplete % format");
  conversion.letter = bytes[at++];
  return conversion;
}

std::string FormatNumber(Runtime& rt, const Conversion& conversion, const Value& value) {
  if (!value.is_number()) {
    rt.Fail(std::string("% format: %") + conversion.letter + " needs a number, got '" +
            TypeName(value) + "'");
  }
  std::string pattern = "%" + conversion.flags + "*.*";
  std::string out(2400, '\0');  // 309 digits before the point, 1000 after it, and the width
  int written = 0;
  if (std::string_view("diuxXo").find(conversion.letter) != std::string_view::npos) {
    if (!value.is_integral() && !(std::fabs(value.number()) < 9.2e18)) {
      rt.Fail("% format: the number is not an integer of 64 bits");
    }
    const long long integer = value.is(Value::Type::kFloat)
                                  ? static_cast<long long>(value.as_float())
                                  : static_cast<long long>(value.integral());
    pattern += std::string("ll") + conversion.letter;
    written = std::snprintf(out.data(), out.size(), pattern.c_str(), conversion.width,
                            conversion.precision, integer);
  } else {
    pattern += conversion.letter;
    written = std::snprintf(out.data(), out.size(), pattern.c_str(), conversion.width,
                            conversion.precision < 0 ? 6 : conversion.precision, value.number());
  }
  out.resize(static_cast<size_t>(std::max(written, 0)));
  return out;
}

}  // namespace

Value FormatPercent(Runtime& rt, const Text& format, const Arguments& arguments) {
  const std::string_view bytes = format.bytes();
  TextBuilder out(rt);
  size_t used = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.Append(format, at, percent);
    if (percent == bytes.size()) break;
    at = percent + 1;
    const bool client = format.ClientAt(percent);
    const Conversion conversion = ParseConversion(rt, bytes, at);
    if (conversion.letter == '%') {
      out.Append("%", client);
      continue;
    }
    if (used >= arguments.positional.size()) rt.Fail("not enough arguments for the % format");
    const Value& value = arguments.positional[used++];
    if (conversion.letter == 's' || conversion.letter == 'r') {
      TextBuilder piece(rt);
      conversion.letter == 's' ? AppendText(piece, value) : AppendRepr(piece, value);
      TextPtr text = piece.Take();
      if (conversion.precision >= 0) {
        const Value stop = Value::Int(conversion.precision);
        text = GetSlice(rt, Value::Of(text), Value(), stop, Value()).text();
      }
      const size_t length = CountCodePoints(text->bytes());
      const auto width = static_cast<size_t>(conversion.width);
      const size_t padding = width > length ? width - length : 0;
      const bool left = conversion.flags.find('-') != std::string::npos;
      if (!left) out.AppendRepeated(' ', padding, client);
      out.Append(*text);
      if (left) out.AppendRepeated(' ', padding, client);
    } else if (std::string_view("diuxXofFeEgG").find(conversion.letter) != std::string_view::npos) {
      out.Append(FormatNumber(rt, conversion, value), client);
    } else {
      rt.Fail("unsupported character in a % format");
    }
  }
  if (used < arguments.positional.size()) rt.Fail("not all arguments of the % format were used");
  return Value::Of(out.Take());
}

}  // namespace tandem::engine
