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

// A text between two steps of a normaliser.
struct NormalizedText {
  std::string text;               // valid UTF-8
  std::vector<TextRange> client;  // ranges of the text that derive from clients' text, if tracked
  bool at_start = true;           // no text directly before it
  bool front_removed = false;     // its beginning was removed
  size_t most_bytes = SIZE_MAX;   // a step that exceeds this throws kInvalidArgument
};

// Rewrites text before pre-tokenization. Runs its steps in order, each in linear time. Immutable.
class Normalizer {
 public:
  using Step = std::function<void(NormalizedText&)>;

  explicit Normalizer(std::vector<Step> steps = {}) : steps_(std::move(steps)) {}

  bool empty() const { return steps_.empty(); }
  // Throws kInvalidArgument when the steps would make a text more than 64 times as long. `client`:
  // the ranges of `text` that clients wrote; the result has the ranges of the new text.
  NormalizedText Apply(std::string_view text, bool at_start,
                       std::vector<TextRange> client = {}) const;

 private:
  std::vector<Step> steps_;
};

// Steps, named as in tokenizer.json.
Normalizer::Step UnicodeStep(NormalForm form);
Normalizer::Step PrependStep(std::string text);                  // before non-empty text
Normalizer::Step ReplaceStep(std::string from, std::string to);  // REQUIRES: from is not empty
Normalizer::Step ReplaceStep(Pattern pattern, std::string to);
Normalizer::Step StripStep(bool left, bool right);  // white space at the ends
Normalizer::Step LowercaseStep();
Normalizer::Step StripAccentsStep();
Normalizer::Step NmtStep();
Normalizer::Step ByteLevelStep();  // spells every byte as a character
Normalizer::Step PrecompiledStep(std::shared_ptr<const Charsmap> charsmap);

struct BertOptions {
  bool clean_text = true;
  bool handle_chinese_chars = true;
  bool strip_accents = true;
  bool lowercase = true;
};
Normalizer::Step BertStep(BertOptions options);

// SentencePiece's normalisation, with the fields of normalizer_spec.
struct SentencePieceOptions {
  std::shared_ptr<const Charsmap> charsmap;  // may be null
  std::shared_ptr<const PieceTrie> kept;     // texts that rules must not change; may be null
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};
Normalizer::Step SentencePieceStep(SentencePieceOptions options);

}  // namespace tandem::engine
