#include "engine/io/json_events.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

namespace tandem::engine {
namespace {

[[noreturn]] void ThrowAt(const std::string& source, const std::string& what, size_t byte,
                          ErrorCode code = ErrorCode::kDataLoss) {
  throw Error(code, source + ": " + what + " at byte " + std::to_string(byte));
}

// Checks the nesting depth without building anything. Also refuses control characters, because the
// parser takes NUL for the end of the text.
void CheckDepth(std::string_view text, const std::string& source, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool space = c == ' ' || c == '\n' || c == '\r' || c == '\t';
    if (static_cast<unsigned char>(c) < 0x20 && (in_string || !space)) {
      ThrowAt(source, "control character", i + 1);
    }
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) {
        ThrowAt(source, "nesting deeper than " + std::to_string(max_depth) + " levels", i + 1);
      }
    } else if (c == ']' || c == '}') {
      depth = std::max(depth - 1, 0);  // the parser reports surplus ones
    }
  }
}

// Walks the text and records the parser's position.
class TrackedIterator {
 public:
  using iterator_category = std::forward_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackedIterator(const char* at, const char** position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  TrackedIterator& operator++() {
    *position_ = ++at_;
    return *this;
  }
  TrackedIterator operator++(int) {
    TrackedIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackedIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackedIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** position_;
};

// Adapts nlohmann's event interface to JsonHandler.
class Adapter {
 public:
  Adapter(JsonHandler& handler, const std::string& source) : handler_(handler), source_(source) {}

  bool null() { return handler_.Null(), true; }
  bool boolean(bool value) { return handler_.Bool(value), true; }
  bool number_integer(int64_t value) { return handler_.Integer(value), true; }
  bool number_unsigned(uint64_t value) { return handler_.Unsigned(value), true; }
  bool number_float(double value, const std::string& text) {
    const bool is_integer = text.find_first_of(".eE") == std::string::npos;
    return is_integer ? handler_.WideInteger(text, value) : handler_.Float(value), true;
  }
  bool string(std::string& value) { return handler_.String(value), true; }
  bool binary(nlohmann::json::binary_t&) { return false; }
  bool start_object(size_t) { return handler_.StartObject(), true; }
  bool key(std::string& name) { return handler_.Key(name), true; }
  bool end_object() { return handler_.EndObject(), true; }
  bool start_array(size_t) { return handler_.StartArray(), true; }
  bool end_array() { return handler_.EndArray(), true; }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) {
    // nlohmann's message: "[json.exception.parse_error.101] parse error at line 1, column 2:
    // <reason>; last read: '…'". The part after "last read" may be as long as the text, so it is
    // cut off.
    constexpr int kNumberOverflow = 406;
    if (error.id == kNumberOverflow) ThrowAt(source_, "number out of range", position);
    std::string reason = error.what();
    reason.resize(std::min(reason.find("; last read:"), reason.size()));
    const size_t column = reason.find(", column ");
    const size_t colon = column == std::string::npos ? column : reason.find(": ", column);
    if (colon != std::string::npos) reason.erase(0, colon + 2);
    ThrowAt(source_, reason, position);
  }

 private:
  JsonHandler& handler_;
  const std::string& source_;
};

}  // namespace

void JsonHandler::Fail(const std::string& what, ErrorCode code) const {
  ThrowAt(source_, what, static_cast<size_t>(position_ - begin_), code);
}

void ParseJsonEvents(std::string_view text, const std::string& source, int max_depth,
                     JsonHandler& handler) {
  CheckDepth(text, source, max_depth);
  const char* begin = text.data();
  handler.source_ = source;
  handler.begin_ = begin;
  handler.position_ = begin;
  Adapter adapter(handler, source);
  nlohmann::json::sax_parse(TrackedIterator(begin, &handler.position_),
                            TrackedIterator(begin + text.size(), &handler.position_), &adapter);
}

}  // namespace tandem::engine
