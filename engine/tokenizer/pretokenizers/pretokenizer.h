#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/tokenizer/text/regex.h"

namespace tandem::engine {

// GPT-2's pattern, the default of byte-level tokenizers.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Patterns of families whose files do not state them.
inline constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Returns the end of the piece that begins at `begin`, by kGpt2Pattern. Every character belongs to
// a piece. REQUIRES: begin < end, valid UTF-8.
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

// Treatment of the separators that a pattern finds. Names are those of tokenizer.json.
enum class SplitBehavior {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // like kIsolated, with adjacent separators joined
};

struct Gpt2Split {};
struct PatternSplit {
  using Class = bool (*)(uint32_t code_point);  // every character of the class is a separator
  std::variant<Pattern, std::string, Class> separator;  // a string is literal
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // the pattern matches the pieces instead of the separators
};
struct PrefixSpace {};  // puts a space before a piece without one

// A piece of text between two stages.
struct PieceOfText {
  std::string_view text;   // not empty; lives until the sink returns
  bool at_start = true;    // false: follows text without a token or a cut between
  bool at_origin = false;  // begins where the whole text began
};

// Splits a text into the pieces within which tokens merge. Each stage splits the pieces of the
// stage before it. Immutable; safe from any thread.
class Pretokenizer {
 public:
  using Sink = std::function<void(std::string_view)>;
  using PieceSink = std::function<void(const PieceOfText&)>;
  // Any other stage: sends the parts of a piece to the sink, in order. Empty parts are dropped.
  using Cut = std::function<void(const PieceOfText&, const PieceSink&)>;
  using Stage = std::variant<Gpt2Split, PatternSplit, PrefixSpace, Cut>;

  explicit Pretokenizer(std::vector<Stage> stages) : stages_(std::move(stages)) {}

  // Views passed to the sink are valid until it returns. `at_start` is false when the text
  // continues another one without a token between them; no space is then added. REQUIRES: text is
  // valid UTF-8.
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
// Replaces spaces by `replacement` and may put one before the piece. Does not split.
Pretokenizer::Cut MetaspaceCut(std::string replacement, PrependScheme scheme);
Pretokenizer::Cut WordCut();    // runs of word characters and runs of others; drops white space
Pretokenizer::Cut ScriptCut();  // splits where the script changes
Pretokenizer::Cut LengthCut(size_t characters);
Pretokenizer::Cut ByteLevelCut();  // spells every byte as a character; does not split

}  // namespace tandem::engine
