#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::engine {

// Receives JSON one token at a time, so that a reader of a fixed format builds only what it needs.
// Every method refuses by default.
class JsonHandler {
 public:
  virtual ~JsonHandler() = default;
  virtual void StartObject() { Fail("unexpected object"); }
  virtual void Key(std::string& /*name*/) { Fail("unexpected name"); }
  virtual void EndObject() { Fail("unexpected end of object"); }
  virtual void StartArray() { Fail("unexpected array"); }
  virtual void EndArray() { Fail("unexpected end of array"); }
  virtual void String(std::string& /*value*/) { Fail("unexpected string"); }
  // Negative integers arrive as Integer, all others as Unsigned.
  virtual void Unsigned(uint64_t /*value*/) { Fail("unexpected number"); }
  virtual void Integer(int64_t /*value*/) { Fail("unexpected negative number"); }
  virtual void Float(double /*value*/) { Fail("unexpected fractional number"); }
  // An integer outside 64 bits: its text, and the nearest double, which the default passes to
  // Float.
  virtual void WideInteger(const std::string& /*digits*/, double nearest) { Float(nearest); }
  virtual void Bool(bool /*value*/) { Fail("unexpected boolean"); }
  virtual void Null() { Fail("unexpected null"); }

 protected:
  // Throws "<source>: <what> at byte N", where N is the number of bytes read so far.
  [[noreturn]] void Fail(const std::string& what, ErrorCode code = ErrorCode::kDataLoss) const;

 private:
  friend void ParseJsonEvents(std::string_view, const std::string&, int, JsonHandler&);
  std::string source_;
  const char* begin_ = nullptr;
  const char* position_ = nullptr;
};

// Feeds `text` to `handler`. Checks the nesting depth before the first event, in one pass without
// allocation. Uses no recursion. Throws kDataLoss like ParseUntrustedJson; handlers may throw
// anything.
void ParseJsonEvents(std::string_view text, const std::string& source, int max_depth,
                     JsonHandler& handler);

}  // namespace tandem::engine
