#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/jinja/runtime.h"

namespace tandem::engine {

// An immutable string that records for every byte whether it came from a client. Bytes are UTF-8;
// offsets are bytes, except where a name says code points. A byte of invalid UTF-8 counts as one
// code point and stays unchanged.
//
// Most strings have one origin, so runs exist only where origins mix.
class Text {
 public:
  Text(std::string bytes, bool from_client) : bytes_(std::move(bytes)), client_(from_client) {}

  static std::shared_ptr<const Text> Make(std::string bytes, bool from_client) {
    return std::make_shared<const Text>(std::move(bytes), from_client);
  }

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool any_client() const { return runs_.empty() ? client_ && !bytes_.empty() : true; }
  bool ClientAt(size_t offset) const;

  // Calls visit(std::string_view part, bool from_client) for the parts of [begin, end), in order.
  template <class Visit>
  void ForEachRun(size_t begin, size_t end, Visit visit) const {
    if (runs_.empty()) {
      if (begin < end) visit(std::string_view(bytes_).substr(begin, end - begin), client_);
      return;
    }
    for (size_t i = RunAt(begin); begin < end; ++i) {
      const size_t stop = runs_[i].end < end ? runs_[i].end : end;
      visit(std::string_view(bytes_).substr(begin, stop - begin), runs_[i].from_client);
      begin = stop;
    }
  }

 private:
  friend class TextBuilder;
  struct Run {
    uint32_t end;  // offset after the run's last byte
    bool from_client;
  };
  size_t RunAt(size_t offset) const;

  std::string bytes_;
  bool client_ = false;    // of all bytes; unused when runs_ is not empty
  std::vector<Run> runs_;  // empty, or at least two, alternating
};

using TextPtr = std::shared_ptr<const Text>;

// Builds a Text, charges every byte to the Runtime and refuses to grow beyond kMaxTextBytes.
class TextBuilder {
 public:
  explicit TextBuilder(Runtime& rt) : rt_(rt) {}

  void Append(std::string_view bytes, bool from_client);
  void Append(const Text& text) { Append(text, 0, text.size()); }
  void Append(const Text& text, size_t begin, size_t end);
  void AppendRepeated(char byte, size_t count, bool from_client);

  size_t size() const { return text_.bytes_.size(); }
  Runtime& runtime() const { return rt_; }
  TextPtr Take();

 private:
  void Reserve(size_t bytes);
  void Mark(bool from_client);

  Runtime& rt_;
  Text text_{std::string(), false};
};

// The parts of UTF-8 and Unicode that Python's str methods need.
struct CodePoint {
  char32_t value;
  size_t bytes;  // 1..4
  bool valid;
};
CodePoint ReadCodePoint(std::string_view bytes, size_t offset);
size_t CountCodePoints(std::string_view bytes);

bool IsSpace(char32_t c);  // str.isspace
bool IsAlpha(char32_t c);
bool IsAlnum(char32_t c);
bool IsDigit(char32_t c);  // ASCII digits only
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsPrintable(char32_t c);  // characters that repr() does not escape
void AppendLower(std::string& out, char32_t c);
void AppendUpper(std::string& out, char32_t c);
void AppendTitle(std::string& out, char32_t c);  // the first letter of a word
// At least one letter has the wanted case and none the other (str.islower, str.isupper).
bool HasOnlyCase(std::string_view bytes, bool (*wanted)(char32_t), bool (*other)(char32_t));

// Text operations with Python's meaning. Offsets are bytes.
TextPtr Substring(Runtime& rt, const TextPtr& text, size_t begin, size_t end);
TextPtr Lower(Runtime& rt, const Text& text);
TextPtr Upper(Runtime& rt, const Text& text);
TextPtr Capitalize(Runtime& rt, const Text& text);
TextPtr Repeat(Runtime& rt, const Text& text, int64_t count);
TextPtr Replace(Runtime& rt, const TextPtr& text, const Text& from, const Text& to, int64_t count);

enum class Side { kBoth, kLeft, kRight };
// `chars` null: white space.
TextPtr Strip(Runtime& rt, const TextPtr& text, const Text* chars, Side side);

// The first `needle` at or after `from`, or npos; linear time for any input.
size_t FindBytes(std::string_view haystack, std::string_view needle, size_t from);

// Lines as in str.splitlines: [begin, end) without the line break, which ends at `next`.
struct Line {
  size_t begin;
  size_t end;
  size_t next;
};
std::vector<Line> SplitLines(Runtime& rt, const Text& text);

}  // namespace tandem::engine
