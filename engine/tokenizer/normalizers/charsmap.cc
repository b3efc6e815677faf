#include "engine/tokenizer/normalizers/charsmap.h"

#include <algorithm>
#include <cstring>

#include "engine/tokenizer/files/file_errors.h"
#include "engine/tokenizer/text/unicode.h"

// Bits of a trie unit: 0-7 the byte that leads to it (bit 31 set: a value), 8 whether it has a
// value, 9 whether the offset counts in steps of 256, 10-30 the offset. Children of the unit at
// index i are at i ^ offset ^ byte; its value is at i ^ offset.
namespace tandem::engine {
namespace {

bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

}  // namespace

Charsmap Charsmap::Parse(std::string_view blob, const std::string& file, const std::string& field) {
  const auto broken = [&](const char* what) { ThrowBroken(file, field, what); };
  Charsmap map;
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof(trie_bytes)) broken("is too short");
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes % 4 != 0 || trie_bytes == 0 || trie_bytes > blob.size()) {
    broken("gives a wrong size for its trie");
  }
  map.units_.resize(trie_bytes / 4);
  std::memcpy(map.units_.data(), blob.data(), trie_bytes);
  map.replacements_ = blob.substr(trie_bytes);
  if (map.replacements_.empty() || map.replacements_.back() != '\0') {
    broken("has replacements without a final NUL byte");
  }

  map.CheckUnits(file, field);
  return map;
}

// Visits every reachable unit once, although rules share their ends. Computes the length of the
// longest rule, which also detects cycles.
void Charsmap::CheckUnits(const std::string& file, const std::string& field) const {
  const auto broken = [&](const char* what) { ThrowBroken(file, field, what); };
  constexpr uint16_t kNew = UINT16_MAX, kOpen = UINT16_MAX - 1;
  std::vector<uint16_t> longest(units_.size(), kNew);  // by unit: bytes of rules below it
  struct Place {
    uint32_t unit;
    uint32_t next_byte;
  };
  std::vector<Place> way = {{0, 1}};
  longest[0] = kOpen;
  CheckValue(0, file, field);
  while (!way.empty()) {
    Place& place = way.back();
    const uint32_t children = place.unit ^ Offset(units_[place.unit]);
    uint32_t open_child = 0;
    for (; place.next_byte < 256 && open_child == 0; ++place.next_byte) {
      const uint32_t child = children ^ place.next_byte;
      if (child >= units_.size() || Label(units_[child]) != place.next_byte) continue;
      if (longest[child] == kOpen) broken("has a cycle in its trie");
      if (longest[child] == kNew) open_child = child;
    }
    if (open_child != 0) {
      if (way.size() > kLongestRule) broken("has a rule that is too long");
      CheckValue(open_child, file, field);
      longest[open_child] = kOpen;
      way.push_back({open_child, 1});
      continue;
    }
    uint16_t below = 0;
    for (uint32_t byte = 1; byte < 256; ++byte) {
      const uint32_t child = children ^ byte;
      if (child >= units_.size() || Label(units_[child]) != byte) continue;
      below = std::max<uint16_t>(below, static_cast<uint16_t>(longest[child] + 1));
    }
    if (below > kLongestRule) broken("has a rule that is too long");
    longest[place.unit] = below;
    way.pop_back();
  }
}

void Charsmap::CheckValue(uint32_t unit, const std::string& file, const std::string& field) const {
  const auto broken = [&](const char* what) { ThrowBroken(file, field, what); };
  if (!HasValue(units_[unit])) return;
  const uint32_t leaf = unit ^ Offset(units_[unit]);
  if (leaf >= units_.size()) broken("has a rule that points outside the trie");
  const uint32_t value = Value(units_[leaf]);
  if (value >= replacements_.size()) broken("has a rule without a replacement");
  const size_t size = strnlen(&replacements_[value], kLongestReplacement + 1);
  if (size > kLongestReplacement) broken("has a replacement that is too long");
  if (ValidUtf8Prefix({&replacements_[value], size}) != size) {
    broken("has a replacement that is not UTF-8");
  }
}

std::string_view Charsmap::ReplacementAt(size_t at) const {
  return std::string_view(replacements_.data() + at);  // the last byte is zero
}

// Calls each() for the rules that are prefixes of the text, shortest first, until it returns false.
// Skips rules that end within a character.
template <class Each>
void Charsmap::ForEachPrefix(std::string_view text, Each&& each) const {
  uint32_t at = 0;
  for (size_t i = 0; i < text.size() && text[i] != '\0'; ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= Offset(units_[at]) ^ byte;
    if (at >= units_.size() || Label(units_[at]) != byte) return;
    if (!HasValue(units_[at])) continue;
    if (i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xC0) == 0x80) continue;
    const uint32_t value = Value(units_[at ^ Offset(units_[at])]);
    if (!each(Match{i + 1, ReplacementAt(value)})) return;
  }
}

std::optional<Charsmap::Match> Charsmap::Longest(std::string_view text) const {
  std::optional<Match> found;
  ForEachPrefix(text, [&](const Match& match) {
    found = match;
    return true;
  });
  return found;
}

std::optional<Charsmap::Match> Charsmap::Shortest(std::string_view text) const {
  std::optional<Match> found;
  ForEachPrefix(text, [&](const Match& match) {
    found = match;
    return false;
  });
  return found;
}

}  // namespace tandem::engine
