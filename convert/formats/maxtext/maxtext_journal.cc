// A note is a line of words separated by spaces:
//
//   stamps  <items' id> <exact's id> <time_ns>
//   leaf    <dtype> <numbers that bf16 changes> <largest change> <values> {<exact>}
//   exact   <name> <dtype> <corrected> <values>
//   values  <value>{,<value>}, each the length in a file, or ':' and the bytes in hexadecimal
//
// Floats are hexadecimal, so that they round-trip exactly.

#include "convert/formats/maxtext/maxtext_journal.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <sstream>
#include <string_view>

namespace tandem::convert {
namespace {

using engine::DType;

constexpr std::string_view kDigits = "0123456789abcdef";

std::string TextOf(const StoredArray& array) {
  std::string text;
  for (const StoredValue& value : array) {
    if (!text.empty()) text += ',';
    if (!value.inlined) {
      text += std::to_string(value.bytes);
      continue;
    }
    text += ':';
    for (const char c : *value.inlined) {
      const auto byte = static_cast<unsigned char>(c);
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  return text;
}

std::string TextOf(double number) {
  std::array<char, 64> text;
  return {text.data(), std::to_chars(text.begin(), text.end(), number, std::chars_format::hex).ptr};
}

// Parses a note word by word. IsWhole reports at the end whether every word was valid.
class Words {
 public:
  explicit Words(const std::string& note) : stream_(note) {}

  std::string Next() {
    std::string word;
    if (!(stream_ >> word)) is_good_ = false;
    return word;
  }
  bool HasMore() { return is_good_ && (stream_ >> std::ws).peek() != EOF; }
  bool IsWhole() { return is_good_ && !HasMore(); }

  std::string Id() {
    const std::string word = Next();
    return IsOrbaxId(word) ? word : Bad<std::string>();
  }
  int64_t Count() { return Whole<int64_t>(Next()); }
  double Number() {
    const std::string word = Next();
    double number = 0;
    const char* end = word.data() + word.size();
    const auto parsed = std::from_chars(word.data(), end, number, std::chars_format::hex);
    return parsed.ec == std::errc() && parsed.ptr == end && number >= 0 ? number : Bad<double>();
  }
  DType Type() {
    const std::string word = Next();
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI8, DType::kI32}) {
      if (word == DTypeName(dtype)) return dtype;
    }
    return Bad<DType>();
  }
  StoredArray Values() {
    StoredArray array;
    std::istringstream values(Next());
    for (std::string value; std::getline(values, value, ',');) {
      array.push_back(value.starts_with(':') ? Inlined(value) : Outside(value));
    }
    return array;
  }

 private:
  template <class T>
  T Bad() {
    is_good_ = false;
    return {};
  }
  // Rejects negative numbers.
  template <class T>
  T Whole(std::string_view word) {
    T number = 0;
    const auto parsed = std::from_chars(word.begin(), word.end(), number);
    const bool is_good = parsed.ec == std::errc() && parsed.ptr == word.end();
    return is_good && number >= T{0} ? number : Bad<T>();
  }
  StoredValue Outside(std::string_view word) {
    return {.bytes = Whole<uint64_t>(word), .inlined = std::nullopt};
  }
  StoredValue Inlined(std::string_view word) {
    std::string bytes;
    if (word.size() % 2 != 1) is_good_ = false;
    for (size_t i = 1; i + 1 < word.size(); i += 2) {
      const size_t high = kDigits.find(word[i]), low = kDigits.find(word[i + 1]);
      if (high == kDigits.npos || low == kDigits.npos) is_good_ = false;
      bytes += static_cast<char>(high << 4 | low);
    }
    return {.bytes = bytes.size(), .inlined = std::move(bytes)};
  }

  std::istringstream stream_;
  bool is_good_ = true;
};

}  // namespace

std::string NoteOf(const MaxTextStamps& stamps) {
  return stamps.items.id + " " + stamps.exact.id + " " + std::to_string(stamps.items.time_ns);
}

std::optional<MaxTextStamps> ParseStamps(const std::string& note) {
  Words words(note);
  MaxTextStamps stamps;
  stamps.items.id = words.Id();
  stamps.exact.id = words.Id();
  stamps.items.time_ns = stamps.exact.time_ns = words.Count();
  return words.IsWhole() ? std::optional(stamps) : std::nullopt;
}

std::string NoteOf(const WrittenLeaf& leaf) {
  std::string note = std::string(DTypeName(leaf.dtype)) + " " +
                     std::to_string(leaf.bf16_loss.changed) + " " + TextOf(leaf.bf16_loss.max_abs) +
                     " " + TextOf(leaf.values);
  for (const WrittenLeaf::Exact& exact : leaf.exact) {
    note += " " + exact.name + " " + std::string(DTypeName(exact.dtype)) + " " +
            std::to_string(exact.corrected) + " " + TextOf(exact.values);
  }
  return note;
}

std::optional<WrittenLeaf> ParseLeaf(const std::string& note) {
  Words words(note);
  WrittenLeaf leaf;
  leaf.dtype = words.Type();
  leaf.bf16_loss.changed = words.Count();
  leaf.bf16_loss.max_abs = words.Number();
  leaf.values = words.Values();
  while (words.HasMore()) {
    WrittenLeaf::Exact& exact = leaf.exact.emplace_back();
    exact.name = words.Next();
    exact.dtype = words.Type();
    exact.corrected = words.Count();
    exact.values = words.Values();
  }
  if (!words.IsWhole()) return std::nullopt;
  return leaf;
}

}  // namespace tandem::convert
