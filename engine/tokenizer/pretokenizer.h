#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace tandem::engine {

// The pattern of GPT-2, from which byte-level tokenizers descend.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Where the piece beginning at `begin` ends, by kGpt2Pattern. Every character belongs to a piece.
// REQUIRES: begin < end, valid UTF-8.
const char* Gpt2PieceEnd(const char* begin, const char* end);

template <class Sink>
void ForEachGpt2Piece(std::string_view text, Sink&& sink) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const q = Gpt2PieceEnd(p, end);
    sink(std::string_view(p, static_cast<size_t>(q - p)));
    p = q;
  }
}

// What becomes of the separators that a pattern finds; names as in tokenizer.json.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // as kIsolated, adjacent separators joined
};

struct Gpt2Split {};
struct PatternSplit {
  std::variant<Pattern, std::string> separator;  // a string is literal
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the pattern describes the pieces, not the separators
};
struct PrefixSpace {};  // a piece that does not begin with a space gets one

// Cuts a text into the pieces within which tokens are merged: stages in order, each cutting the
// pieces of the one before. Immutable; safe from any thread.
class Pretokenizer {
 public:
  using Stage = std::variant<Gpt2Split, PatternSplit, PrefixSpace>;
  using Sink = std::function<void(std::string_view)>;

  explicit Pretokenizer(std::vector<Stage> stages) : stages_(std::move(stages)) {}

  // The views given to the sink live until it returns. `at_start` is false when the text continues
  // another one without a token between them: no space is then put before it.
  // REQUIRES: text is valid UTF-8.
  void ForEachPiece(std::string_view text, bool at_start, const Sink& sink) const {
    if (!text.empty()) Run(0, text, at_start, sink);
  }

  bool is_gpt2() const {
    return stages_.size() == 1 && std::holds_alternative<Gpt2Split>(stages_[0]);
  }
  bool adds_prefix_space() const;

 private:
  void Run(size_t stage, std::string_view text, bool at_start, const Sink& sink) const;

  std::vector<Stage> stages_;
};

}  // namespace tandem::engine
