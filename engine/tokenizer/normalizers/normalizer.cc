#include "engine/tokenizer/normalizers/normalizer.h"

#include <algorithm>

#include "engine/base/error.h"

namespace tandem::engine {
namespace {

constexpr size_t kMostGrowth = 64;  // Unicode's own forms stay below 12

void CheckSize(const std::string& text, const NormalizedText& now) {
  if (text.size() <= now.most_bytes) return;
  throw Error(ErrorCode::kInvalidArgument, "the tokenizer's normalizer makes the text more than " +
                                               std::to_string(kMostGrowth) +
                                               " times as long, which is the limit");
}

// Writes the result of a step front to back and records the ranges that come from clients.
class Rewriting {
 public:
  explicit Rewriting(NormalizedText& now) : now_(now), source_(now.client) {}

  std::string& out() { return out_; }
  // Call after appending to out(): the new bytes replace [begin, end) of the old text. They are the
  // client's if any replaced byte is. Calls come in order; an empty range has no owner.
  void StandsFor(size_t begin, size_t end) {
    if (now_.client.empty()) return;
    if (source_.Touches(begin, end)) AppendRange(client_, marked_, out_.size());
    marked_ = out_.size();
  }
  // Appends [begin, end) of the old text unchanged.
  void Copy(size_t begin, size_t end) {
    const size_t at = out_.size();
    out_.append(now_.text, begin, end - begin);
    source_.ForEachIn(begin, end, [&](size_t from, size_t to) {
      AppendRange(client_, from - begin + at, to - begin + at);
    });
    marked_ = out_.size();
  }
  void Finish() {
    CheckSize(out_, now_);
    now_.client = std::move(client_);
    now_.text = std::move(out_);
  }

 private:
  NormalizedText& now_;
  RangeCursor source_;
  std::string out_;
  std::vector<TextRange> client_;  // of out_
  size_t marked_ = 0;              // end of the part of out_ that has an owner
};

// Keeps [begin, end) of the text.
void Keep(NormalizedText& now, size_t begin, size_t end) {
  if (begin == 0 && end == now.text.size()) return;
  if (!now.client.empty()) now.client = RangesWithin(now.client, begin, end);
  now.text = now.text.substr(begin, end - begin);
}

// Rewrites the text character by character with each(code point, out).
template <class Each>
void MapCharacters(NormalizedText& now, Each&& each) {
  Rewriting rewriting(now);
  std::string& out = rewriting.out();
  out.reserve(now.text.size());
  for (size_t i = 0; i < now.text.size();) {
    const Utf8Char c = DecodeUtf8(now.text.data() + i);
    each(c.value, out);
    rewriting.StandsFor(i, i + c.size);
    i += c.size;
    if (i == c.size && out.empty()) now.front_removed = true;
  }
  rewriting.Finish();
}

// Normalises each origin separately: a client's accent must not change the last letter of a
// template's control token.
void NormalizeForm(NormalForm form, NormalizedText& now) {
  Rewriting rewriting(now);
  const std::string_view text = now.text;
  size_t begin = 0;
  const auto normalize_up_to = [&](size_t end) {
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    if (end <= begin) return;
    rewriting.out() += Normalize(form, text.substr(begin, end - begin));
    rewriting.StandsFor(begin, end);
    begin = end;
  };
  for (const TextRange& range : now.client) {
    normalize_up_to(range.first);
    normalize_up_to(range.second);
  }
  normalize_up_to(text.size());
  rewriting.Finish();
}

// Removes the characters for which drop(code point) is true.
template <class Drop>
void DropCharacters(NormalizedText& now, Drop&& drop) {
  MapCharacters(now, [&](uint32_t c, std::string& out) {
    if (!drop(c)) AppendUtf8(c, out);
  });
}

// find(from) returns the next Pattern::Match, never empty, or nullopt.
template <class Find>
void ReplaceMatches(NormalizedText& now, const std::string& to, Find&& find) {
  Rewriting rewriting(now);
  size_t done = 0;
  while (const std::optional<Pattern::Match> match = find(done)) {
    if (match->begin == 0 && to.empty()) now.front_removed = true;
    rewriting.Copy(done, match->begin);
    rewriting.out() += to;
    rewriting.StandsFor(match->begin, match->end);
    done = match->end;
    CheckSize(rewriting.out(), now);
  }
  if (done == 0) return;
  rewriting.Copy(done, now.text.size());
  rewriting.Finish();
}

bool IsChinese(uint32_t c) {
  // 0x2B920 is later than the begin of its block, 0x2B820, as in the library.
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

// Applies the SentencePiece rules to the beginning of a text.
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
  Rewriting rewriting(now);
  std::string& out = rewriting.out();
  out.reserve(text.size() + text.size() / 2 + space.size());
  if (!text.empty() && options.add_dummy_prefix && now.at_start) out += space;
  rewriting.StandsFor(0, 0);
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
    const auto at = static_cast<size_t>(text.data() - now.text.data());
    rewriting.StandsFor(at, at + next.size);
    text.remove_prefix(next.size);
  }
  rewriting.Finish();
  if (!options.remove_extra_whitespaces) return;
  std::string_view kept = now.text;
  while (kept.ends_with(space)) kept.remove_suffix(space.size());
  Keep(now, 0, kept.size());
}

}  // namespace

NormalizedText Normalizer::Apply(std::string_view text, bool at_start,
                                 std::vector<TextRange> client) const {
  NormalizedText now{.text = std::string(text),
                     .client = std::move(client),
                     .at_start = at_start,
                     .most_bytes = text.size() * kMostGrowth + 4096};
  for (const Step& step : steps_) step(now);
  return now;
}

Normalizer::Step UnicodeStep(NormalForm form) {
  return [form](NormalizedText& now) { NormalizeForm(form, now); };
}

Normalizer::Step PrependStep(std::string text) {
  return [text = std::move(text)](NormalizedText& now) {
    if (!now.at_start || now.text.empty()) return;
    Rewriting rewriting(now);
    rewriting.out() = text;
    rewriting.Copy(0, now.text.size());
    rewriting.Finish();
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
    const auto begin = static_cast<size_t>(text.data() - now.text.data());
    Keep(now, begin, begin + text.size());
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
    Rewriting rewriting(now);
    const std::string_view text = now.text;
    size_t begin = 0;
    const auto spell_up_to = [&](size_t end) {
      AppendByteSpelling(text.substr(begin, end - begin), rewriting.out());
      rewriting.StandsFor(begin, end);
      begin = end;
    };
    for (const TextRange& range : now.client) {
      spell_up_to(range.first);
      spell_up_to(range.second);
    }
    spell_up_to(text.size());
    rewriting.Finish();
  };
}

Normalizer::Step PrecompiledStep(std::shared_ptr<const Charsmap> charsmap) {
  // Rewrites whole graphemes if they are short, else characters. If a grapheme begins with a rule,
  // only the replacement stays. tokenizer.json defines this; SentencePiece differs.
  return [charsmap = std::move(charsmap)](NormalizedText& now) {
    constexpr size_t kShortGrapheme = 6;
    Rewriting rewriting(now);
    std::string& out = rewriting.out();
    out.reserve(now.text.size());
    ForEachGrapheme(now.text, [&](std::string_view grapheme) {
      const auto at = static_cast<size_t>(grapheme.data() - now.text.data());
      if (grapheme.size() < kShortGrapheme) {
        if (const auto match = charsmap->Shortest(grapheme)) {
          out += match->replacement;
          rewriting.StandsFor(at, at + grapheme.size());
          return;
        }
      }
      for (size_t i = 0; i < grapheme.size();) {
        const size_t size = DecodeUtf8(grapheme.data() + i).size;
        const std::string_view character = grapheme.substr(i, size);
        const auto match = charsmap->Shortest(character);
        out += match ? match->replacement : character;
        rewriting.StandsFor(at + i, at + i + size);
        i += size;
      }
      if (out.empty()) now.front_removed = true;
    });
    rewriting.Finish();
  };
}

Normalizer::Step BertStep(BertOptions options) {
  return [options](NormalizedText& now) {
    if (options.clean_text) CleanText(now);
    if (options.handle_chinese_chars) SpaceChinese(now);
    if (options.strip_accents) {
      NormalizeForm(NormalForm::kNfd, now);
      DropCharacters(now, IsNonspacingMark);
    }
    if (options.lowercase) Lowercase(now);
  };
}

Normalizer::Step SentencePieceStep(SentencePieceOptions options) {
  return [options = std::move(options)](NormalizedText& now) { ApplySentencePiece(options, now); };
}

}  // namespace tandem::engine
