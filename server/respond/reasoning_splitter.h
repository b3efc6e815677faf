#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::server {

inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";

// Takes apart the text of a model that thinks between `<think>` and `</think>` before it answers.
// Only thinking at the very beginning counts; later marks are text. What may be part of a mark is
// held back until it is clear. The concatenation of all pieces does not depend on how the text
// was cut. It is the marks' text that counts: a model's marks that are control tokens must be kept
// in it.
class ReasoningSplitter {
 public:
  enum class State {
    kUndecided,  // nothing but white space or the beginning of a mark yet
    kThinking,
    kAnswering,
  };
  explicit ReasoningSplitter(State state) : state_(state) {}

  struct Pieces {
    std::string reasoning;
    std::string content;
  };
  Pieces Push(std::string_view text);
  // What was held back, at the end of the text.
  Pieces Flush();

  State state() const { return state_; }
  // Whether some text waits: the tokens it came from wait with it.
  bool holds() const { return !held_.empty(); }

 private:
  State state_;
  std::string held_;
};

// How the answer to a prompt begins: inside of a thought that the template has opened, behind one
// that it has closed, or undecided.
ReasoningSplitter::State StateAfterPrompt(std::string_view prompt);
// The same where an answer is continued, which has this text already.
ReasoningSplitter::State StateWithin(std::string_view answer);

}  // namespace tandem::server
