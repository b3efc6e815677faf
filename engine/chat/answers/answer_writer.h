#pragma once

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "engine/chat/answers/answer_events.h"
#include "engine/chat/answers/custom_input.h"
#include "engine/chat/answers/declared_tools.h"

namespace tandem::engine {

// Turns the findings of a reader into events. Joins neighbouring deltas, gives calls their ids,
// drops calls beyond the limit, and holds white space back, because white space around calls is
// layout and not text.
class AnswerWriter {
 public:
  // `new_id` returns the id of a call.
  AnswerWriter(std::shared_ptr<const DeclaredTools> tools, int max_calls,
               std::function<std::string()> new_id);

  // Sets the list that receives the events. It must outlive the next calls.
  void SetOut(AnswerEvents* out) { out_ = out; }

  void Reasoning(std::string_view text);
  void Text(std::string_view text);
  // Whether calls may have this name. Text follows otherwise: the client cannot run such a call.
  bool MayCall(std::string_view name) const;
  // REQUIRES: MayCall(name).
  void Begin(std::string_view name);
  // Arguments of a custom tool become its input.
  void Arguments(std::string_view text);
  // The next bytes of the input of a custom tool as they are.
  void Input(std::string_view text);
  void End();
  // `written`: the model's text of the whole call so far.
  void Drop(std::string_view written);
  void Finish(bool was_cut);

  bool is_in_call() const { return is_in_call_; }
  bool holds() const { return !space_.empty(); }
  const DeclaredTools& tools() const { return *tools_; }

 private:
  bool is_muted() const { return n_begun_ > max_calls_; }

  const std::shared_ptr<const DeclaredTools> tools_;
  const int max_calls_;
  const std::function<std::string()> new_id_;
  AnswerEvents* out_ = nullptr;
  std::string space_;  // white space at the end of the text
  CustomInput input_;
  bool is_custom_ = false;   // the open call
  std::string before_call_;  // white space before the open call
  int n_begun_ = 0;
  bool is_in_call_ = false;
  bool has_ended_a_call_ = false;
};

}  // namespace tandem::engine
