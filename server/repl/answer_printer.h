#pragma once

#include <functional>
#include <string_view>

#include "server/terminal/visible_text.h"

namespace tandem::server {

// Where an answer goes.
struct AnswerTarget {
  bool is_terminal = false;  // filters control characters and shows the reasoning
  bool has_colour = false;
};

// Writes an answer as it arrives. A terminal gets foreign text made visible, and the reasoning dim
// before the answer. A file or a pipe gets the bytes of the answer alone. One thread.
class AnswerPrinter {
 public:
  using Write = std::function<void(std::string_view)>;
  AnswerPrinter(AnswerTarget target, Write write) : target_(target), write_(std::move(write)) {}

  void Reasoning(std::string_view piece);
  void Text(std::string_view piece);
  // Ends the answer with a line break, and the styles.
  void End();

 private:
  enum class Part { kNone, kReasoning, kText };
  void Show(std::string_view bytes);
  void EndReasoning();

  const AnswerTarget target_;
  const Write write_;
  VisibleStream filter_;
  Part part_ = Part::kNone;
  bool ends_line_ = true;
};

}  // namespace tandem::server
