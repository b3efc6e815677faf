#include "engine/tokenizer/text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

unsigned char ByteAt(std::string_view bytes, size_t i) {
  return static_cast<unsigned char>(bytes[i]);
}

CharClass ComputeClass(uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  const uint32_t mask = U_GET_GC_MASK(c);
  if ((mask & U_GC_L_MASK) != 0) return CharClass::kLetter;
  if ((mask & U_GC_N_MASK) != 0) return CharClass::kNumber;
  return u_isUWhiteSpace(c) ? CharClass::kSpace : CharClass::kOther;
}

// Code point of each byte's spelling, and the inverse.
struct ByteAlphabet {
  std::array<uint32_t, 256> spelling{};
  std::array<int16_t, 324> byte{};  // indexed by code point; -1 is foreign

  ByteAlphabet() {
    byte.fill(-1);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      spelling[b] = printable ? b : next++;
      byte[spelling[b]] = static_cast<int16_t>(b);
    }
  }
};
const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet;
  return alphabet;
}

const icu::Normalizer2& Form(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case NormalForm::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  TANDEM_CHECK(U_SUCCESS(status) && normalizer != nullptr);
  return *normalizer;
}

// Appends combining class and code point of each character in the canonical decomposition.
void AppendMarks(const icu::Normalizer2& nfd, uint32_t code_point,
                 std::vector<std::pair<uint8_t, uint32_t>>& marks) {
  icu::UnicodeString parts;
  if (nfd.getDecomposition(static_cast<UChar32>(code_point), parts)) {
    for (int32_t i = 0; i < parts.length(); i = parts.moveIndex32(i, 1)) {
      const UChar32 c = parts.char32At(i);
      marks.emplace_back(u_getCombiningClass(c), static_cast<uint32_t>(c));
    }
  } else {
    marks.emplace_back(u_getCombiningClass(static_cast<UChar32>(code_point)), code_point);
  }
}

bool IsMark(const icu::Normalizer2& nfd, uint32_t code_point) {
  if (code_point < 0x300) return false;
  if (u_getCombiningClass(static_cast<UChar32>(code_point)) != 0) return true;
  // U+0F73 and similar characters have class 0 but decompose to marks.
  icu::UnicodeString parts;
  return nfd.getDecomposition(static_cast<UChar32>(code_point), parts) && parts.length() > 0 &&
         u_getCombiningClass(parts.char32At(0)) != 0;
}

// ICU orders combining marks by insertion, which is quadratic in their number. Long runs get
// canonical order before that. The string is equivalent, so the result is the same.
constexpr size_t kLongMarkRun = 64;

std::optional<std::string> OrderLongMarkRuns(std::string_view text) {
  const icu::Normalizer2& nfd = Form(NormalForm::kNfd);
  std::string out;
  size_t copied = 0;
  size_t run_begin = 0, run_length = 0;
  const auto flush = [&](size_t run_end) {
    if (run_length > kLongMarkRun) {
      std::vector<std::pair<uint8_t, uint32_t>> marks;
      for (size_t i = run_begin; i < run_end;) {
        const Utf8Char c = DecodeUtf8(text.data() + i);
        AppendMarks(nfd, c.value, marks);
        i += c.size;
      }
      std::stable_sort(marks.begin(), marks.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      out.append(text.substr(copied, run_begin - copied));
      for (const auto& mark : marks) AppendUtf8(mark.second, out);
      copied = run_end;
    }
    run_length = 0;
  };
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = DecodeUtf8(text.data() + i);
    if (c.value >= 0x300 && IsMark(nfd, c.value)) {
      if (run_length++ == 0) run_begin = i;
    } else if (run_length > 0) {
      flush(i);
    }
    i += c.size;
  }
  flush(text.size());
  if (copied == 0) return std::nullopt;
  out.append(text.substr(copied));
  return out;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

CharClass ClassOf(uint32_t code_point) {
  static const std::array<CharClass, 0x10000> basic_plane = [] {
    std::array<CharClass, 0x10000> classes{};
    for (uint32_t c = 0; c < 0x10000; ++c) classes[c] = ComputeClass(c);
    return classes;
  }();
  return code_point < 0x10000 ? basic_plane[code_point] : ComputeClass(code_point);
}

bool IsWordCharacter(uint32_t code_point) {
  const auto c = static_cast<UChar32>(code_point);
  return (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

void AppendByteSpelling(std::string_view bytes, std::string& out) {
  for (size_t i = 0; i < bytes.size(); ++i) AppendUtf8(Alphabet().spelling[ByteAt(bytes, i)], out);
}

std::optional<std::string> BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t i = 0; i < spelling.size();) {
    if (NextUtf8(spelling.substr(i)).kind != Utf8Kind::kWhole) return std::nullopt;
    const Utf8Char c = DecodeUtf8(spelling.data() + i);
    const int16_t byte = c.value < Alphabet().byte.size() ? Alphabet().byte[c.value] : int16_t{-1};
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
    i += c.size;
  }
  return bytes;
}

std::string Normalize(NormalForm form, std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  const std::optional<std::string> ordered = OrderLongMarkRuns(text);
  const std::string_view input = ordered ? std::string_view(*ordered) : text;
  if (input.size() > static_cast<size_t>(INT32_MAX)) {
    throw Error(ErrorCode::kInvalidArgument,
                "text to normalise must be under 2 GiB, got " + std::to_string(input.size()));
  }
  std::string out;
  out.reserve(input.size());
  icu::StringByteSink<std::string> sink(&out);
  UErrorCode status = U_ZERO_ERROR;
  Form(form).normalizeUTF8(0, icu::StringPiece(input.data(), static_cast<int32_t>(input.size())),
                           sink, nullptr, status);
  TANDEM_CHECK(U_SUCCESS(status));
  return out;
}

}  // namespace tandem::engine
