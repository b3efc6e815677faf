#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// Splits an answer before the input of a custom tool that stands unquoted at its end. A possible
// part of a mark is held back until it is decided.
class RawInputSplitter {
 public:
  // `names`: the custom tools with such inputs.
  explicit RawInputSplitter(const std::vector<std::string>& names);

  struct Pieces {
    std::string text;                // before the mark
    std::vector<size_t> token_ends;  // within `text`
    std::string name;                // the tool, when its mark has just been read
    std::string input;
  };
  Pieces Push(std::string_view text, std::span<const size_t> token_ends);
  // Returns the held text at the end of the answer.
  Pieces Flush();

  bool is_in_input() const { return is_in_input_; }
  bool holds() const { return !held_.empty(); }

 private:
  const std::vector<std::string> names_;
  std::vector<std::string> marks_;
  std::string held_;
  bool is_in_input_ = false;
};

}  // namespace tandem::engine
