#include "engine/base/quoted.h"
#include "engine/tokenizer/readers/json_components.h"
#include "engine/tokenizer/text/unicode.h"

namespace tandem::engine {
namespace {

SplitBehavior ReadBehavior(const Field& field) {
  const std::string_view name = field.String();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.Broken("must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous, got " +
               Quoted(name));
}

std::string ReadCharacter(const Field& field) {
  const std::string_view text = field.String();
  if (text.empty() || NextUtf8(text).size != text.size()) field.Broken("must be one character");
  return std::string(text);
}

void AddSplit(PatternSplit::Class separators, SplitBehavior behavior, PretokenizerSpec& spec) {
  spec.stages.push_back(PatternSplit{separators, behavior, false});
}

bool IsNumber(uint32_t c) { return ClassOf(c) == CharClass::kNumber; }

void ReadSequence(const Field& field, PretokenizerSpec& spec) {
  for (const Field& item : field.At("pretokenizers").Items()) ReadPretokenizer(item, spec);
}

void ReadSplit(const Field& field, PretokenizerSpec& spec) {
  const SplitBehavior behavior = ReadBehavior(field.At("behavior"));
  const bool invert = field.BoolOr("invert", false);
  const Field pattern = field.At("pattern");
  if (pattern.Find("String")) {
    spec.stages.push_back(PatternSplit{ReadLiteral(pattern), behavior, invert});
    return;
  }
  const Field regex = pattern.At("Regex");
  // This pattern has a scanner. Its matches leave no gaps, so `invert` makes no difference.
  if (regex.String() == kGpt2Pattern && behavior == SplitBehavior::kIsolated) {
    spec.stages.push_back(Gpt2Split{});
  } else {
    spec.stages.push_back(PatternSplit{CompilePattern(regex), behavior, invert});
  }
}

void ReadDigits(const Field& field, PretokenizerSpec& spec) {
  const bool individual = field.BoolOr("individual_digits", false);
  AddSplit(IsNumber, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, spec);
}

void ReadPunctuation(const Field& field, PretokenizerSpec& spec) {
  const auto behavior = field.Find("behavior");
  AddSplit(IsPunctuation, behavior ? ReadBehavior(*behavior) : SplitBehavior::kIsolated, spec);
}

void ReadWhitespace(const Field&, PretokenizerSpec& spec) { spec.stages.push_back(WordCut()); }

void ReadWhitespaceSplit(const Field&, PretokenizerSpec& spec) {
  AddSplit(IsWhiteSpace, SplitBehavior::kRemoved, spec);
}

void ReadBert(const Field&, PretokenizerSpec& spec) {
  AddSplit(IsWhiteSpace, SplitBehavior::kRemoved, spec);
  AddSplit(IsPunctuation, SplitBehavior::kIsolated, spec);
}

void ReadCharDelimiterSplit(const Field& field, PretokenizerSpec& spec) {
  spec.stages.push_back(
      PatternSplit{ReadCharacter(field.At("delimiter")), SplitBehavior::kRemoved, false});
}

void ReadMetaspace(const Field& field, PretokenizerSpec& spec) {
  PrependScheme scheme = PrependScheme::kAlways;
  if (const auto name = field.Find("prepend_scheme")) {
    if (name->String() == "always") {
      scheme = PrependScheme::kAlways;
    } else if (name->String() == "first") {
      scheme = PrependScheme::kFirst;
    } else if (name->String() == "never") {
      scheme = PrependScheme::kNever;
    } else {
      name->Broken("must be always, first or never, got " + Quoted(name->String()));
    }
  }
  if (!field.BoolOr("add_prefix_space", true)) scheme = PrependScheme::kNever;  // legacy field
  const std::string replacement = ReadCharacter(field.At("replacement"));
  spec.stages.push_back(MetaspaceCut(replacement, scheme));
  if (field.BoolOr("split", true)) {
    spec.stages.push_back(PatternSplit{replacement, SplitBehavior::kMergedWithNext, false});
  }
}

void ReadUnicodeScripts(const Field&, PretokenizerSpec& spec) {
  spec.stages.push_back(ScriptCut());
}

void ReadFixedLength(const Field& field, PretokenizerSpec& spec) {
  const Field length = field.At("length");
  if (length.Int() < 1) length.Broken("must be at least 1, got " + std::to_string(length.Int()));
  spec.stages.push_back(LengthCut(length.Count()));
}

void ReadByteLevel(const Field& field, PretokenizerSpec& spec) {
  if (spec.byte_level) field.Unsupported("twice is not supported: remove one");
  if (field.BoolOr("add_prefix_space", true)) spec.stages.push_back(PrefixSpace{});
  if (field.BoolOr("use_regex", true)) spec.stages.push_back(Gpt2Split{});
  spec.byte_level = true;
  spec.byte_level_is_last = true;
}

constexpr JsonComponent<PretokenizerSpec> kPretokenizers[] = {
    {"Sequence", ReadSequence},       {"Split", ReadSplit},
    {"Digits", ReadDigits},           {"Punctuation", ReadPunctuation},
    {"Whitespace", ReadWhitespace},   {"WhitespaceSplit", ReadWhitespaceSplit},
    {"BertPreTokenizer", ReadBert},   {"CharDelimiterSplit", ReadCharDelimiterSplit},
    {"Metaspace", ReadMetaspace},     {"UnicodeScripts", ReadUnicodeScripts},
    {"FixedLength", ReadFixedLength}, {"ByteLevel", ReadByteLevel},
};

}  // namespace

void ReadPretokenizer(const Field& field, PretokenizerSpec& spec) {
  if (spec.byte_level_is_last && field.Type() != "Sequence") {
    // Later stages work on the spellings of bytes.
    spec.stages.push_back(ByteLevelCut());
    spec.byte_level_is_last = false;
  }
  ReadComponent(kPretokenizers, field, spec);
}

}  // namespace tandem::engine
