#include "engine/infill.h"

#include <array>
#include <string_view>

namespace tandem::engine {
namespace {

struct Spelling {
  std::string_view prefix, suffix, middle;
};

// Spellings of base models with infill training. Some files do not mark these tokens as special.
constexpr std::array kSpellings = {
    Spelling{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    Spelling{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    Spelling{"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    // "Hole" stands where the text is missing, "end" behind the text after it.
    Spelling{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
    Spelling{"▁<PRE>", "▁<SUF>", "▁<MID>"},
    Spelling{"<PRE>", "<SUF>", "<MID>"},
};

// Each ends the infilled text, the file, or a file of the training text.
constexpr std::array<std::string_view, 10> kEnds = {
    "<|fim_pad|>",        "<fim_pad>",     "<fim-pad>",  "<|repo_name|>", "<|file_sep|>",
    "<|file_separator|>", "<|endoftext|>", "<file_sep>", "<EOT>",         "▁<EOT>",
};

std::optional<InfillTokens> Find(const Tokenizer& tokenizer, const Spelling& spelling) {
  const auto prefix = tokenizer.FindToken(spelling.prefix);
  const auto suffix = tokenizer.FindToken(spelling.suffix);
  const auto middle = tokenizer.FindToken(spelling.middle);
  if (!prefix || !suffix || !middle) return std::nullopt;
  return InfillTokens{*prefix, *suffix, *middle, {}};
}

}  // namespace

std::optional<InfillTokens> FindInfillTokens(const TokenizerFiles& files) {
  std::optional<InfillTokens> found;
  if (files.infill) {
    found = InfillTokens{files.infill->prefix, files.infill->suffix, files.infill->middle, {}};
  }
  for (const Spelling& spelling : kSpellings) {
    if (!found) found = Find(*files.tokenizer, spelling);
  }
  if (!found) return std::nullopt;
  for (const std::string_view end : kEnds) {
    if (const auto id = files.tokenizer->FindToken(end)) found->ends.push_back(*id);
  }
  return found;
}

}  // namespace tandem::engine
