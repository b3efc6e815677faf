#include "engine/tokenizer/pretokenizers/pretokenizer.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

struct ClassedChar {
  CharClass char_class;
  uint32_t size;
};

ClassedChar ClassAt(const char* p) {
  static const std::array<CharClass, 128> ascii = [] {
    std::array<CharClass, 128> classes{};
    for (uint32_t c = 0; c < 128; ++c) classes[c] = ClassOf(c);
    return classes;
  }();
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) return {ascii[byte], 1};
  const Utf8Char c = DecodeUtf8(p);
  return {ClassOf(c.value), c.size};
}

const char* RunEnd(const char* p, const char* end, CharClass char_class) {
  while (p < end) {
    const ClassedChar c = ClassAt(p);
    if (c.char_class != char_class) break;
    p += c.size;
  }
  return p;
}

// Returns the end of 's 't 'm 'd 're 've 'll at `p`, or nullptr.
const char* ContractionEnd(const char* p, const char* end) {
  if (end - p < 2) return nullptr;
  const char a = p[1];
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return p + 2;
  if (end - p < 3) return nullptr;
  const char b = p[2];
  const bool found = ((a == 'r' || a == 'v') && b == 'e') || (a == 'l' && b == 'l');
  return found ? p + 3 : nullptr;
}

// A stretch of text: a separator, or the text between two.
struct Part {
  size_t begin;
  size_t end;
  bool separator;
};

template <class Each>
void ForEachPart(const PatternSplit& split, std::string_view text, Each&& each) {
  const auto find = [&](size_t from) -> std::optional<Pattern::Match> {
    if (const auto* pattern = std::get_if<Pattern>(&split.separator)) {
      return pattern->Find(text, from);
    }
    if (const auto* in_class = std::get_if<PatternSplit::Class>(&split.separator)) {
      for (size_t at = from; at < text.size();) {
        const Utf8Char c = DecodeUtf8(text.data() + at);
        if ((*in_class)(c.value)) return Pattern::Match{at, at + c.size};
        at += c.size;
      }
      return std::nullopt;
    }
    const std::string& literal = std::get<std::string>(split.separator);
    const size_t at = text.find(literal, from);
    if (at == std::string_view::npos || literal.empty()) return std::nullopt;
    return Pattern::Match{at, at + literal.size()};
  };
  size_t done = 0, from = 0;
  while (from < text.size()) {
    const std::optional<Pattern::Match> match = find(from);
    if (!match) break;
    if (match->end == match->begin) {  // an empty match: search again one character later
      if (match->begin >= text.size()) break;
      from = match->begin + DecodeUtf8(text.data() + match->begin).size;
      continue;
    }
    if (match->begin > done) each(Part{done, match->begin, split.invert});
    each(Part{match->begin, match->end, !split.invert});
    done = from = match->end;
  }
  if (done < text.size()) each(Part{done, text.size(), split.invert});
}

template <class Each>
void ForEachSplit(const PatternSplit& split, std::string_view text, Each&& each) {
  // Holds one piece back while the next part may join it.
  std::optional<Part> held;
  const auto emit = [&](const Part& part) { each(text.substr(part.begin, part.end - part.begin)); };
  const auto flush = [&] {
    if (held) emit(*held);
    held.reset();
  };
  ForEachPart(split, text, [&](const Part& part) {
    switch (split.behavior) {
      case SplitBehavior::kIsolated:
        emit(part);
        break;
      case SplitBehavior::kRemoved:
        if (!part.separator) emit(part);
        break;
      case SplitBehavior::kContiguous:
        if (held && held->separator == part.separator) {
          held->end = part.end;
        } else {
          flush();
          held = part;
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (held && part.separator && !held->separator) {
          held->end = part.end;
          flush();
        } else {
          flush();
          held = part;
        }
        break;
      case SplitBehavior::kMergedWithNext:
        if (held && held->separator && !part.separator) {
          held->end = part.end;
          flush();
        } else {
          flush();
          held = part;
        }
        break;
    }
  });
  flush();
}

}  // namespace

const char* Gpt2PieceEnd(const char* begin, const char* end) {
  if (*begin == '\'') {
    if (const char* contraction = ContractionEnd(begin, end)) return contraction;
  }
  const ClassedChar first = ClassAt(begin);
  if (first.char_class != CharClass::kSpace) {
    return RunEnd(begin + first.size, end, first.char_class);
  }
  if (*begin == ' ' && begin + 1 < end) {
    const ClassedChar next = ClassAt(begin + 1);
    if (next.char_class != CharClass::kSpace) {
      return RunEnd(begin + 1 + next.size, end, next.char_class);
    }
  }
  // `\s+(?!\S)` leaves the last space of a run to the next word; `\s+` takes a single one.
  const char* last = begin;
  const char* p = begin + first.size;
  while (p < end) {
    const ClassedChar c = ClassAt(p);
    if (c.char_class != CharClass::kSpace) break;
    last = p;
    p += c.size;
  }
  if (p == end || last == begin) return p;
  return last;
}

bool Pretokenizer::adds_prefix_space() const {
  return std::any_of(stages_.begin(), stages_.end(),
                     [](const Stage& stage) { return std::holds_alternative<PrefixSpace>(stage); });
}

void Pretokenizer::Run(size_t stage, const PieceOfText& piece, const Sink& sink) const {
  if (stage == stages_.size()) {
    sink(piece.text);
    return;
  }
  const Stage& now = stages_[stage];
  if (std::holds_alternative<PrefixSpace>(now)) {
    if (!piece.at_start || piece.text.front() == ' ') {
      Run(stage + 1, piece, sink);
    } else {
      Run(stage + 1, {std::string(" ").append(piece.text), true, piece.at_origin}, sink);
    }
    return;
  }
  if (const auto* cut = std::get_if<Cut>(&now)) {
    (*cut)(piece, [&](const PieceOfText& part) {
      if (!part.text.empty()) Run(stage + 1, part, sink);
    });
    return;
  }
  const auto next = [&](std::string_view part) {
    const bool first = part.data() == piece.text.data();
    Run(stage + 1, {part, piece.at_start || !first, piece.at_origin && first}, sink);
  };
  if (std::holds_alternative<Gpt2Split>(now)) {
    ForEachGpt2Piece(piece.text, next);
  } else {
    ForEachSplit(std::get<PatternSplit>(now), piece.text, next);
  }
}

}  // namespace tandem::engine
