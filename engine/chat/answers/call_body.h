#pragma once

#include <memory>
#include <string>
#include <utility>

#include "engine/chat/answers/answer_input.h"
#include "engine/chat/answers/answer_writer.h"
#include "engine/chat/answers/json_scanner.h"
#include "engine/chat/answers/tool_format.h"

namespace tandem::engine {

// Reads one call from the first byte after the opening mark to the last before the closing mark. A
// body that holds a list without marks of its own reads the whole list.
class CallBody {
 public:
  enum class Status {
    kMore,
    kDone,  // the call has ended; the unread text begins after it
    kBad,   // not a call; the unread text begins at the first byte that does not belong to one
  };
  virtual ~CallBody() = default;
  virtual Status Read(AnswerInput& input, AnswerWriter& writer) = 0;
};

// Reads the body of a row. Not for kHarmony, whose calls are messages.
std::unique_ptr<CallBody> MakeCallBody(const ToolFormat& format);

// Reads arguments alone: one JSON object, copied to the open call.
class ArgumentsBody {
 public:
  explicit ArgumentsBody(std::string name) : name_(std::move(name)) {}
  // Reads at most the first `n` unread bytes. Begins the call at the first brace.
  CallBody::Status Read(AnswerInput& input, size_t n, AnswerWriter& writer);

 private:
  const std::string name_;
  JsonScanner scanner_;
};

}  // namespace tandem::engine
