#pragma once

#include <string>
#include <variant>
#include <vector>

namespace tandem::engine {

// The parts of one answer, in the order in which the model writes them. Every part is whole UTF-8
// where the text is.
struct ReasoningPart {
  std::string text;  // not empty
};
struct TextPart {
  std::string text;  // not empty
};
// A call begins. `index` counts from 0 without gaps.
struct CallBegin {
  int index = 0;
  std::string id;
  std::string name;
  bool is_custom = false;  // a call of a custom tool: its input is text, not a JSON object
};
// The next bytes of the arguments, or of the input, of the call that has begun.
struct CallArguments {
  int index = 0;
  std::string text;  // not empty
  bool is_custom = false;
};
// The arguments are one JSON object, or the input is a text, and complete.
struct CallEnd {
  int index = 0;
};
// The arguments stopped being JSON, or the answer ended within them. The model's text after
// `written` follows as TextPart.
struct CallDropped {
  int index = 0;
  std::string written;  // the model's text of the call, with the white space before it
};
// The last event. A call that has begun and neither ended nor dropped was cut by the token limit.
struct AnswerFinish {
  bool has_calls = false;  // a call has ended, or the limit has cut one
};

using AnswerEvent = std::variant<ReasoningPart, TextPart, CallBegin, CallArguments, CallEnd,
                                 CallDropped, AnswerFinish>;
using AnswerEvents = std::vector<AnswerEvent>;

}  // namespace tandem::engine
