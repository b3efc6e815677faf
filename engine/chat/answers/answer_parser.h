#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/chat/answers/answer_events.h"
#include "engine/chat/answers/answer_input.h"
#include "engine/chat/answers/answer_reader.h"
#include "engine/chat/answers/answer_writer.h"
#include "engine/chat/answers/declared_tools.h"
#include "engine/chat/answers/raw_input.h"
#include "engine/chat/answers/reasoning_splitter.h"
#include "engine/chat/answers/tool_format.h"

namespace tandem::engine {

// How to read an answer. Shared by the choices of a request.
struct AnswerOptions {
  std::optional<ReasoningSplitter::State> reasoning;  // where the answer begins; unset: no thoughts
  const ToolFormat* format = nullptr;                 // a row of the table; null: no calls
  std::shared_ptr<const DeclaredTools> tools;         // null: no calls
  int max_calls = std::numeric_limits<int>::max();    // later calls of the answer are left out
  std::vector<std::string> token_marks;               // marks of the row that are control tokens
  std::function<std::string()> new_id;                // the id of a call
};

// Turns the text of one answer into events: thoughts, text, tool calls. Incremental: the events,
// with neighbouring deltas joined, do not depend on how the text was cut. The order is: reasoning,
// then text and calls in the order of the answer, then AnswerFinish. A call is a CallBegin, its
// CallArguments, and a CallEnd or CallDropped.
//
// A call becomes events once its name is known and declared. Until then, a mark without a call
// behind it is text, unchanged. Arguments are valid JSON up to the last event; where they stop
// being JSON the call is dropped. White space next to calls is left out. Keeps at most 8 MiB of a
// call. One thread at a time.
class AnswerParser {
 public:
  explicit AnswerParser(const AnswerOptions& options);

  // `token_ends`: the ends of control tokens within `text`, ascending.
  AnswerEvents Push(std::string_view text, std::span<const size_t> token_ends = {});
  // The last events. `was_cut`: the token limit ended the answer.
  AnswerEvents Finish(bool was_cut);

  // Whether text is held back; its tokens wait with it.
  bool holds() const;
  bool is_thinking() const;

 private:
  void Content(const RawInputSplitter::Pieces& pieces);

  std::optional<ReasoningSplitter> splitter_;
  std::optional<RawInputSplitter> raw_input_;
  AnswerInput input_;
  AnswerWriter writer_;
  std::unique_ptr<AnswerReader> reader_;
};

}  // namespace tandem::engine
