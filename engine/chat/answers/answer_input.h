#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::engine {

// The unread text of an answer. Text that was taken stays available until it is forgotten, so that
// a call that turns out to be text can be returned unchanged.
class AnswerInput {
 public:
  // `token_marks`: the marks that are control tokens of the model. Only the token counts as such a
  // mark; the same letters written as text do not.
  explicit AnswerInput(std::vector<std::string> token_marks);

  // `token_ends`: the ends of control tokens within `text`, ascending.
  void Append(std::string_view text, std::span<const size_t> token_ends);

  std::string_view text() const { return std::string_view(text_).substr(at_); }
  // Moves n bytes to the taken text. Returns them until the next call of Append.
  std::string_view Take(size_t n);
  // Takes white space. Whether a byte follows it.
  bool SkipSpace();
  std::string_view taken() const { return std::string_view(text_).substr(begin_, at_ - begin_); }
  void Forget();
  bool holds() const { return begin_ < text_.size(); }

  // How much of the unread text is certain to hold no mark.
  struct Found {
    size_t at = 0;
    std::string_view
        mark;  // that begins at `at`; empty: none yet, and bytes from `at` may begin one
  };
  Found Find(std::span<const std::string_view> marks) const;

  enum class Match { kYes, kNo, kMore };  // kMore: the text is a proper prefix of the mark
  Match Begins(std::string_view mark) const;

  // Whether only a control token counts as this mark.
  bool IsToken(std::string_view mark) const;

 private:
  bool EndsToken(size_t end) const;  // an offset in text()

  const std::vector<std::string> token_marks_;
  std::string text_;
  size_t begin_ = 0;                  // of the taken text
  size_t at_ = 0;                     // of the unread text
  uint64_t dropped_ = 0;              // bytes before text_
  std::vector<uint64_t> token_ends_;  // offsets in the whole answer
};

}  // namespace tandem::engine
