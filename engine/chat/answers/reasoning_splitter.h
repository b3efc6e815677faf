#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tandem::engine {

inline constexpr std::string_view kThinkOpen = "<think>";
inline constexpr std::string_view kThinkClose = "</think>";

// Splits the text of a model that thinks between `<think>` and `</think>` before it answers. Only
// thinking at the very beginning counts; later marks are text. A possible part of a mark is held
// back until it is decided. The concatenated pieces do not depend on how the text was cut. The
// splitter sees text only: marks that are control tokens must be kept in it.
class ReasoningSplitter {
 public:
  enum class State {
    kUndecided,  // only white space or a prefix of a mark so far
    kThinking,
    kAnswering,
  };
  explicit ReasoningSplitter(State state) : state_(state) {}

  struct Pieces {
    std::string reasoning;
    std::string content;
  };
  Pieces Push(std::string_view text);
  // Returns the held text at the end of the input.
  Pieces Flush();

  State state() const { return state_; }
  // Whether text is held back; its tokens wait with it.
  bool holds() const { return !held_.empty(); }

 private:
  State state_;
  std::string held_;
};

// The state in which the answer to a prompt begins. The template may have opened a thought, or
// closed one; otherwise the state is undecided.
ReasoningSplitter::State StateAfterPrompt(std::string_view prompt);
// The state after the given beginning of an answer, for a continued answer.
ReasoningSplitter::State StateWithin(std::string_view answer);

}  // namespace tandem::engine
