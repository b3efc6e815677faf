#include "engine/tokenizer/normalizer.h"

#include <algorithm>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

constexpr size_t kMostGrowth = 64;  // Unicode's own forms stay below 12

void CheckSize(const std::string& text, const NormalizedText& now) {
  if (text.size() <= now.most_bytes) return;
  throw Error(ErrorCode::kInvalidArgument, "the tokenizer's normalizer makes the text more than " +
                                               std::to_string(kMostGrowth) + " times as long");
}

// Rewrites the text character by character: each(code point, out).
template <class Each>
void MapCharacters(NormalizedText& now, Each&& each) {
  std::string out;
  out.reserve(now.text.size());
  for (size_t i = 0; i < now.text.size();) {
    const Utf8Char c = DecodeUtf8(now.text.data() + i);
    each(c.value, out);
    i += c.size;
    if (i == c.size && out.empty()) now.front_removed = true;
  }
  CheckSize(out, now);
  now.text = std::move(out);
}

// Leaves out the characters for which drop(code point).
template <class Drop>
void DropCharacters(NormalizedText& now, Drop&& drop) {
  MapCharacters(now, [&](uint32_t c, std::string& out) {
    if (!drop(c)) AppendUtf8(c, out);
  });
}

// find(from): the next match as Pattern::Match, which is never empty, or nullopt.
template <class Find>
void ReplaceMatches(NormalizedText& now, const std::string& to, Find&& find) {
  std::string out;
  size_t done = 0;
  while (const std::optional<Pattern::Match> match = find(done)) {
    if (match->begin == 0 && to.empty()) now.front_removed = true;
    out.append(now.text, done, match->begin - done).append(to);
    done = match->end;
    CheckSize(out, now);
  }
  if (done == 0) return;
  now.text = out.append(now.text, done);
  CheckSize(now.text, now);
}

bool IsChinese(uint32_t c) {
  // The last range but two begins later than the block it means; kept as the library has it.
  constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x4E00, 0x9FFF},   {0x3400, 0x4DBF},   {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F},
      {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0xF900, 0xFAFF},   {0x2F800, 0x2FA1F}};
  return c >= 0x3400 && std::any_of(std::begin(kRanges), std::end(kRanges), [c](const auto& range) {
           return c >= range.first && c <= range.second;
         });
}

void CleanText(NormalizedText& now) {
  MapCharacters(now, [](uint32_t c, std::string& out) {
    const bool line = c == '\t' || c == '\n' || c == '\r';
    if (c == 0 || c == 0xFFFD || (!line && IsControlOrFormat(c))) return;
    if (IsWhiteSpace(c)) {
      out.push_back(' ');
    } else {
      AppendUtf8(c, out);
    }
  });
}

void SpaceChinese(NormalizedText& now) {
  MapCharacters(now, [](uint32_t c, std::string& out) {
    const bool chinese = IsChinese(c);
    if (chinese) out.push_back(' ');
    AppendUtf8(c, out);
    if (chinese) out.push_back(' ');
  });
}

void Lowercase(NormalizedText& now) {
  MapCharacters(now, [](uint32_t c, std::string& out) { AppendLowercase(c, out); });
}

// The rules of a SentencePiece model at the beginning of a text.
Charsmap::Match NextByRules(const SentencePieceOptions& options, std::string_view text) {
  size_t kept = 0;
  if (options.kept) options.kept->ForEachPrefix(text, [&](size_t size, TokenId) { kept = size; });
  if (kept > 0) return {kept, text.substr(0, kept)};
  if (options.charsmap) {
    if (const auto match = options.charsmap->Longest(text)) return *match;
  }
  const size_t size = DecodeUtf8(text.data()).size;
  return {size, text.substr(0, size)};
}

void ApplySentencePiece(const SentencePieceOptions& options, NormalizedText& now) {
  const std::string_view space = options.escape_whitespaces ? kMetaspace : " ";
  std::string_view text = now.text;
  if (options.remove_extra_whitespaces) {
    while (!text.empty()) {
      const Charsmap::Match next = NextByRules(options, text);
      if (next.replacement != " ") break;
      text.remove_prefix(next.size);
    }
  }
  std::string out;
  out.reserve(text.size() + text.size() / 2 + space.size());
  if (!text.empty() && options.add_dummy_prefix && now.at_start) out += space;
  bool after_space = options.remove_extra_whitespaces;
  while (!text.empty()) {
    const Charsmap::Match next = NextByRules(options, text);
    std::string_view added = next.replacement;
    while (after_space && added.starts_with(' ')) added.remove_prefix(1);
    for (const char c : added) {
      if (c == ' ') {
        out += space;
      } else {
        out.push_back(c);
      }
    }
    if (!added.empty()) after_space = options.remove_extra_whitespaces && added.ends_with(' ');
    text.remove_prefix(next.size);
  }
  if (options.remove_extra_whitespaces) {
    while (out.ends_with(space)) out.resize(out.size() - space.size());
  }
  CheckSize(out, now);
  now.text = std::move(out);
}

}  // namespace

NormalizedText Normalizer::Apply(std::string_view text, bool at_start) const {
  NormalizedText now{.text = std::string(text),
                     .at_start = at_start,
                     .most_bytes = text.size() * kMostGrowth + 4096};
  for (const Step& step : steps_) step(now);
  return now;
}

Normalizer::Step UnicodeStep(NormalForm form) {
  return [form](NormalizedText& now) {
    now.text = Normalize(form, now.text);
    CheckSize(now.text, now);
  };
}

Normalizer::Step PrependStep(std::string text) {
  return [text = std::move(text)](NormalizedText& now) {
    if (now.at_start && !now.text.empty()) now.text.insert(0, text);
    CheckSize(now.text, now);
  };
}

Normalizer::Step ReplaceStep(std::string from, std::string to) {
  return [from = std::move(from), to = std::move(to)](NormalizedText& now) {
    ReplaceMatches(now, to, [&](size_t at) -> std::optional<Pattern::Match> {
      const size_t found = now.text.find(from, at);
      if (found == std::string::npos) return std::nullopt;
      return Pattern::Match{found, found + from.size()};
    });
  };
}

Normalizer::Step ReplaceStep(Pattern pattern, std::string to) {
  return [pattern = std::move(pattern), to = std::move(to)](NormalizedText& now) {
    ReplaceMatches(now, to, [&](size_t at) { return pattern.Find(now.text, at); });
  };
}

Normalizer::Step StripStep(bool left, bool right) {
  return [left, right](NormalizedText& now) {
    std::string_view text = now.text;
    while (left && !text.empty()) {
      const Utf8Char c = DecodeUtf8(text.data());
      if (!IsWhiteSpace(c.value)) break;
      text.remove_prefix(c.size);
      now.front_removed = true;
    }
    while (right && !text.empty()) {
      size_t last = text.size() - 1;
      while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
      if (!IsWhiteSpace(DecodeUtf8(text.data() + last).value)) break;
      text = text.substr(0, last);
    }
    now.text = std::string(text);
  };
}

Normalizer::Step LowercaseStep() { return Lowercase; }

Normalizer::Step StripAccentsStep() {
  return [](NormalizedText& now) { DropCharacters(now, IsMark); };
}

Normalizer::Step NmtStep() {
  return [](NormalizedText& now) {
    MapCharacters(now, [](uint32_t c, std::string& out) {
      const bool control = (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) ||
                           c == 0x7F || c == 0x8F || c == 0x9F;
      const bool space = c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
                         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 ||
                         c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      if (!control) AppendUtf8(space ? ' ' : c, out);
    });
  };
}

Normalizer::Step ByteLevelStep() {
  return [](NormalizedText& now) {
    std::string out;
    AppendByteSpelling(now.text, out);
    now.text = std::move(out);
  };
}

Normalizer::Step PrecompiledStep(std::shared_ptr<const Charsmap> charsmap) {
  // Looks at whole graphemes if they are short, else at characters; and of a grapheme that begins
  // with a rule, only the replacement stays. That is how tokenizer.json means it, and not what
  // SentencePiece does.
  return [charsmap = std::move(charsmap)](NormalizedText& now) {
    constexpr size_t kShortGrapheme = 6;
    std::string out;
    out.reserve(now.text.size());
    ForEachGrapheme(now.text, [&](std::string_view grapheme) {
      if (grapheme.size() < kShortGrapheme) {
        if (const auto match = charsmap->Shortest(grapheme)) {
          out += match->replacement;
          return;
        }
      }
      for (size_t i = 0; i < grapheme.size();) {
        const size_t size = DecodeUtf8(grapheme.data() + i).size;
        const std::string_view character = grapheme.substr(i, size);
        const auto match = charsmap->Shortest(character);
        out += match ? match->replacement : character;
        i += size;
      }
      if (out.empty()) now.front_removed = true;
    });
    CheckSize(out, now);
    now.text = std::move(out);
  };
}

Normalizer::Step BertStep(BertOptions options) {
  return [options](NormalizedText& now) {
    if (options.clean_text) CleanText(now);
    if (options.handle_chinese_chars) SpaceChinese(now);
    if (options.strip_accents) {
      now.text = Normalize(NormalForm::kNfd, now.text);
      DropCharacters(now, IsNonspacingMark);
    }
    if (options.lowercase) Lowercase(now);
  };
}

Normalizer::Step SentencePieceStep(SentencePieceOptions options) {
  return [options = std::move(options)](NormalizedText& now) { ApplySentencePiece(options, now); };
}

}  // namespace tandem::engine
