#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/base/check.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

// Returns the character that ends at `end`, or nullopt when the bytes there are not a character.
std::optional<Utf8Char> CharBefore(std::string_view text, size_t end) {
  for (size_t size = 1; size <= 4 && size <= end; ++size) {
    const std::string_view tail = text.substr(end - size, size);
    const Utf8Unit unit = NextUtf8(tail);
    if (unit.kind == Utf8Kind::kWhole && unit.size == size) return DecodeUtf8(tail.data());
  }
  return std::nullopt;
}

std::optional<Utf8Char> CharAt(std::string_view text, size_t begin) {
  if (begin >= text.size()) return std::nullopt;
  if (NextUtf8(text.substr(begin)).kind != Utf8Kind::kWhole) return std::nullopt;
  return DecodeUtf8(text.data() + begin);
}

bool TouchesWord(std::string_view text, size_t begin, size_t end) {
  const std::optional<Utf8Char> before = CharBefore(text, begin), after = CharAt(text, end);
  return (before && IsWordCharacter(before->value)) || (after && IsWordCharacter(after->value));
}

// Tags of HTML that Gemma's vocabulary holds as ordinary text. `s` is absent: it names BOS
// elsewhere.
constexpr std::array<std::string_view, 23> kHtmlElements = {
    "b",     "blockquote", "caption", "code", "em",     "h1",  "h2",  "h3",
    "h4",    "h5",         "h6",      "i",    "strong", "sub", "sup", "table",
    "tbody", "td",         "tfoot",   "th",   "thead",  "tr",  "u"};

bool IsHtmlTag(std::string_view text) {
  if (!text.starts_with('<') || !text.ends_with('>')) return false;
  text = text.substr(1, text.size() - 2);
  if (text.starts_with('/')) text.remove_prefix(1);
  return std::find(kHtmlElements.begin(), kHtmlElements.end(), text) != kHtmlElements.end();
}

}  // namespace

bool AddedToken::is_control() const {
  if (special) return true;
  return content.size() > 2 && !IsHtmlTag(content) &&
         (content.find_first_of("<>[]") != std::string::npos || content.front() == '/');
}

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : tokens_(tokens) {
  roots_.fill(-1);
  for (size_t t = 0; t < tokens_.size(); ++t) {
    const std::string& content = tokens_[t].content;
    TANDEM_CHECK(!content.empty());
    is_control_.push_back(tokens_[t].is_control());
    has_control_ = has_control_ || is_control_.back();
    int32_t node = -1;
    for (const char byte : content) {
      int32_t& first =
          node < 0 ? roots_[static_cast<unsigned char>(byte)] : nodes_[size_t(node)].first_child;
      int32_t child = node < 0 ? first : Child(node, byte);
      if (child < 0) {
        child = static_cast<int32_t>(nodes_.size());
        const Node added{
            .token = -1, .first_child = -1, .next_sibling = node < 0 ? -1 : first, .byte = byte};
        first = child;
        nodes_.push_back(added);
      }
      node = child;
    }
    nodes_[static_cast<size_t>(node)].token = static_cast<int32_t>(t);
  }
}

int32_t AddedTokenMatcher::Child(int32_t node, char byte) const {
  int32_t child = nodes_[static_cast<size_t>(node)].first_child;
  while (child >= 0 && nodes_[static_cast<size_t>(child)].byte != byte) {
    child = nodes_[static_cast<size_t>(child)].next_sibling;
  }
  return child;
}

std::optional<AddedTokenMatcher::Hit> AddedTokenMatcher::Next(std::string_view text, size_t done,
                                                              size_t from,
                                                              RangeCursor& client) const {
  if (tokens_.empty()) return std::nullopt;
  while (from < text.size()) {
    int32_t node = roots_[static_cast<unsigned char>(text[from])];
    int32_t found = -1;
    for (size_t i = from + 1; node >= 0; ++i) {
      const int32_t token = nodes_[static_cast<size_t>(node)].token;
      if (token >= 0 && !(is_control_[static_cast<size_t>(token)] && client.Touches(from, i))) {
        found = token;
      }
      if (i >= text.size()) break;
      node = Child(node, text[i]);
    }
    if (found < 0) {
      ++from;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    size_t begin = from, end = from + token.content.size();
    from = end;
    if (token.single_word && TouchesWord(text, begin, end)) continue;
    if (token.lstrip) {
      while (begin > done) {
        const std::optional<Utf8Char> c = CharBefore(text.substr(done), begin - done);
        if (!c || ClassOf(c->value) != CharClass::kSpace) break;
        begin -= c->size;
      }
    }
    if (token.rstrip) {
      while (const std::optional<Utf8Char> c = CharAt(text, end)) {
        if (ClassOf(c->value) != CharClass::kSpace) break;
        end += c->size;
      }
    }
    return Hit{begin, end, token.id};
  }
  return std::nullopt;
}

}  // namespace tandem::engine
