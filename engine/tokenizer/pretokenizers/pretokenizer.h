#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/tokenizer/text/regex.h"

namespace tandem::engine {

// The pattern of GPT-2, from which byte-level tokenizers descend.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Those of families whose files leave it to the program.
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

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
  using Class = bool (*)(uint32_t code_point);          // every such character is a separator
  std::variant<Pattern, std::string, Class> separator;  // a string is literal
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the pattern describes the pieces, not the separators
};
struct PrefixSpace {};  // a piece that does not begin with a space gets one

// A piece of text on its way through the stages.
struct PieceOfText {
  std::string_view text;   // not empty; lives until the sink returns
  bool at_start = true;    // no text stands before it without a token or a cut between
  bool at_origin = false;  // it begins where the whole text began
};

// Cuts a text into the pieces within which tokens are merged: stages in order, each cutting the
// pieces of the one before. Immutable; safe from any thread.
class Pretokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  using PieceSink = std::function<void(const PieceOfText&)>;
  // Any other stage: gives the pieces of a piece, in order. Empty ones are dropped.
  using Cut = std::function<void(const PieceOfText&, const PieceSink&)>;
  using Stage = std::variant<Gpt2Split, PatternSplit, PrefixSpace, Cut>;

  explicit Pretokenizer(std::vector<Stage> stages) : stages_(std::move(stages)) {}

  // The views given to the sink live until it returns. `at_start` is false when the text continues
  // another one without a token between them: no space is then put before it.
  // REQUIRES: text is valid UTF-8.
  void ForEachPiece(std::string_view text, bool at_start, const Sink& sink) const {
    ForEachPiece({text, at_start, at_start}, sink);
  }
  void ForEachPiece(const PieceOfText& text, const Sink& sink) const {
    if (!text.text.empty()) Run(0, text, sink);
  }

  bool is_gpt2() const {
    return stages_.size() == 1 && std::holds_alternative<Gpt2Split>(stages_[0]);
  }
  bool adds_prefix_space() const;

 private:
  void Run(size_t stage, const PieceOfText& piece, const Sink& sink) const;

  std::vector<Stage> stages_;
};

enum class PrependScheme { kAlways, kFirst, kNever };
// Spaces become `replacement`, and one may be put before the piece. Does not cut.
Pretokenizer::Cut MetaspaceCut(std::string replacement, PrependScheme scheme);
Pretokenizer::Cut WordCut();    // runs of word characters, runs of others; white space goes
Pretokenizer::Cut ScriptCut();  // where the script changes
Pretokenizer::Cut LengthCut(size_t characters);
Pretokenizer::Cut ByteLevelCut();  // every byte as a character. Does not cut

}  // namespace tandem::engine
