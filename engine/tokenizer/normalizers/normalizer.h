#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/models/piece_trie.h"
#include "engine/tokenizer/normalizers/charsmap.h"
#include "engine/tokenizer/text/regex.h"
#include "engine/tokenizer/text/text_ranges.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {

// A text on its way through the steps of a normaliser.
struct NormalizedText {
  std::string text;               // valid UTF-8
  std::vector<TextRange> client;  // of the text: what clients wrote any part of, as far as asked
  bool at_start = true;           // no text stands directly before it
  bool front_removed = false;     // what it began with is gone
  size_t most_bytes = SIZE_MAX;   // a step that would pass this throws kInvalidArgument
};

// Rewrites text before it is cut into pieces: steps in order, each linear. Immutable.
class Normalizer {
 public:
  using Step = std::function<void(NormalizedText&)>;

  explicit Normalizer(std::vector<Step> steps = {}) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  // Throws kInvalidArgument for a text that the steps would blow up to more than 64 times its size.
  // `client`: the ranges of `text` that clients wrote; the result names them in the new text.
  NormalizedText Apply(std::string_view text, bool at_start,
                       std::vector<TextRange> client = {}) const;

 private:
  std::vector<Step> steps_;
};

// The steps; names as in tokenizer.json.
Normalizer::Step UnicodeStep(NormalForm form);
Normalizer::Step PrependStep(std::string text);  // before any text that is not empty
Normalizer::Step ReplaceStep(std::string from, std::string to);  // REQUIRES: from is not empty
Normalizer::Step ReplaceStep(Pattern pattern, std::string to);
Normalizer::Step StripStep(bool left, bool right);  // white space at the ends
Normalizer::Step LowercaseStep();
Normalizer::Step StripAccentsStep();
Normalizer::Step NmtStep();
Normalizer::Step ByteLevelStep();  // every byte as a character
Normalizer::Step PrecompiledStep(std::shared_ptr<const Charsmap> charsmap);

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
Normalizer::Step BertStep(BertOptions options);

// What SentencePiece does to a text, by the fields of its normalizer_spec.
struct SentencePieceOptions {
  std::shared_ptr<const Charsmap> charsmap;  // or none
  std::shared_ptr<const PieceTrie> kept;     // texts that no rule may touch, or none
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};
Normalizer::Step SentencePieceStep(SentencePieceOptions options);

}  // namespace tandem::engine
