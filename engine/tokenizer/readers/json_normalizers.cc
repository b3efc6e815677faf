#include "engine/tokenizer/files/base64.h"
#include "engine/tokenizer/readers/json_components.h"

namespace tandem::engine {
namespace {

void ReadSequence(const Field& field, NormalizerSpec& spec) {
  for (const Field& item : field.At("normalizers").Items()) ReadNormalizer(item, spec);
}

template <NormalForm kForm>
void ReadForm(const Field&, NormalizerSpec& spec) {
  spec.steps.push_back(UnicodeStep(kForm));
}

void ReadPrepend(const Field& field, NormalizerSpec& spec) {
  spec.steps.push_back(PrependStep(std::string(field.At("prepend").String())));
}

void ReadReplace(const Field& field, NormalizerSpec& spec) {
  const Field pattern = field.At("pattern");
  std::string to(field.At("content").String());
  if (pattern.Find("String")) {
    spec.steps.push_back(ReplaceStep(ReadLiteral(pattern), std::move(to)));
    return;
  }
  const Field regex = pattern.At("Regex");
  Pattern compiled = CompilePattern(regex);
  if (compiled.may_match_nothing()) {
    regex.Unsupported("matches the empty text: use a pattern that matches at least one character");
  }
  spec.steps.push_back(ReplaceStep(std::move(compiled), std::move(to)));
}

void ReadStrip(const Field& field, NormalizerSpec& spec) {
  spec.steps.push_back(
      StripStep(field.BoolOr("strip_left", true), field.BoolOr("strip_right", true)));
}

void ReadLowercase(const Field&, NormalizerSpec& spec) { spec.steps.push_back(LowercaseStep()); }

void ReadStripAccents(const Field&, NormalizerSpec& spec) {
  spec.steps.push_back(StripAccentsStep());
}

void ReadNmt(const Field&, NormalizerSpec& spec) { spec.steps.push_back(NmtStep()); }

void ReadBert(const Field& field, NormalizerSpec& spec) {
  BertOptions options;
  options.clean_text = field.BoolOr("clean_text", true);
  options.handle_chinese_chars = field.BoolOr("handle_chinese_chars", true);
  options.lowercase = field.BoolOr("lowercase", true);
  options.strip_accents = field.BoolOr("strip_accents", options.lowercase);  // null: as lowercase
  spec.steps.push_back(BertStep(options));
}

void ReadPrecompiled(const Field& field, NormalizerSpec& spec) {
  const auto text = field.Find("precompiled_charsmap");
  if (!text || text->String().empty()) return;  // no rules
  const auto blob = DecodeBase64(text->String());
  if (!blob) text->Broken("must be base64");
  spec.steps.push_back(PrecompiledStep(
      std::make_shared<Charsmap>(Charsmap::Parse(*blob, text->file(), text->path()))));
}

void ReadByteLevel(const Field& field, NormalizerSpec& spec) {
  if (spec.byte_level) field.Unsupported("twice is not supported: remove one");
  spec.steps.push_back(ByteLevelStep());
  spec.byte_level = true;
}

constexpr JsonComponent<NormalizerSpec> kNormalizers[] = {
    {"Sequence", ReadSequence},
    {"NFC", ReadForm<NormalForm::kNfc>},
    {"NFD", ReadForm<NormalForm::kNfd>},
    {"NFKC", ReadForm<NormalForm::kNfkc>},
    {"NFKD", ReadForm<NormalForm::kNfkd>},
    {"Prepend", ReadPrepend},
    {"Replace", ReadReplace},
    {"Strip", ReadStrip},
    {"Lowercase", ReadLowercase},
    {"StripAccents", ReadStripAccents},
    {"Nmt", ReadNmt},
    {"BertNormalizer", ReadBert},
    {"Precompiled", ReadPrecompiled},
    {"ByteLevel", ReadByteLevel},
};

}  // namespace

void ReadNormalizer(const Field& field, NormalizerSpec& spec) {
  ReadComponent(kNormalizers, field, spec);
}

std::string ReadLiteral(const Field& pattern) {
  const Field literal = pattern.At("String");
  if (literal.String().empty()) literal.Broken("must not be empty");
  return std::string(literal.String());
}

Pattern CompilePattern(const Field& regex) {
  return Pattern::Compile(regex.String(), regex.file() + ": " + regex.path());
}

}  // namespace tandem::engine
