#include <unicode/brkiter.h>
#include <unicode/uchar.h>
#include <unicode/uscript.h>
#include <unicode/utext.h>

#include <memory>

#include "engine/base/check.h"
#include "engine/tokenizer/text/unicode.h"

// Character classes and grapheme borders, from ICU.
namespace tandem::engine {
namespace {

// The tokenizers library's tables have this Unicode version; newer characters are unclassified.
constexpr uint8_t kOldUnicode = 8;

bool IsOld(UChar32 c) {
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] <= kOldUnicode;
}

bool IsOldOf(uint32_t code_point, uint32_t mask) {
  const auto c = static_cast<UChar32>(code_point);
  return (U_GET_GC_MASK(c) & mask) != 0 && IsOld(c);
}

struct TextCloser {
  void operator()(UText* text) const { utext_close(text); }
};

}  // namespace

bool IsWhiteSpace(uint32_t code_point) { return ClassOf(code_point) == CharClass::kSpace; }

bool IsPunctuation(uint32_t code_point) {
  if (code_point < 0x80) {
    return (code_point >= 33 && code_point <= 47) || (code_point >= 58 && code_point <= 64) ||
           (code_point >= 91 && code_point <= 96) || (code_point >= 123 && code_point <= 126);
  }
  return IsOldOf(code_point, U_GC_P_MASK);
}

bool IsMark(uint32_t code_point) {
  return (U_GET_GC_MASK(static_cast<UChar32>(code_point)) & U_GC_M_MASK) != 0;
}

bool IsNonspacingMark(uint32_t code_point) { return IsOldOf(code_point, U_GC_MN_MASK); }

bool IsControlOrFormat(uint32_t code_point) {
  return IsOldOf(code_point, U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CO_MASK);
}

uint32_t ScriptOf(uint32_t code_point) {
  UErrorCode status = U_ZERO_ERROR;
  const UScriptCode script = uscript_getScript(static_cast<UChar32>(code_point), &status);
  if (U_FAILURE(status) || script == USCRIPT_UNKNOWN) return 0;
  return static_cast<uint32_t>(script) + 1;
}

void AppendLowercase(uint32_t code_point, std::string& out) {
  // The only character with a lower case of two characters in every context.
  constexpr uint32_t kCapitalIWithDot = 0x130;
  if (code_point == kCapitalIWithDot) {
    out += "i\xCC\x87";
  } else if (code_point < 0x80) {
    const bool upper = code_point >= 'A' && code_point <= 'Z';
    out.push_back(static_cast<char>(upper ? code_point + 32 : code_point));
  } else {
    AppendUtf8(static_cast<uint32_t>(u_tolower(static_cast<UChar32>(code_point))), out);
  }
}

void ForEachGrapheme(std::string_view text, const std::function<void(std::string_view)>& sink) {
  UErrorCode status = U_ZERO_ERROR;
  // One iterator per thread: creating one costs more than splitting most texts, and it stores the
  // current text.
  thread_local const std::unique_ptr<icu::BreakIterator> graphemes(
      icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  const std::unique_ptr<UText, TextCloser> source(
      utext_openUTF8(nullptr, text.data(), static_cast<int64_t>(text.size()), &status));
  TANDEM_CHECK(U_SUCCESS(status) && graphemes);
  graphemes->setText(source.get(), status);
  TANDEM_CHECK(U_SUCCESS(status));
  int32_t begin = graphemes->first();
  for (int32_t end = graphemes->next(); end != icu::BreakIterator::DONE; end = graphemes->next()) {
    sink(text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    begin = end;
  }
}

}  // namespace tandem::engine
