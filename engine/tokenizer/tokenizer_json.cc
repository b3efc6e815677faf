#include "engine/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <unordered_set>

#include "engine/tokenizer/bpe_builder.h"
#include "engine/tokenizer/file_errors.h"
#include "engine/tokenizer/json_value.h"
#include "engine/tokenizer/unicode.h"

namespace tandem::engine {
namespace {

// A place in the file: a value, and the path to it for messages.
class Field {
 public:
  Field(const std::string& file, JsonValue value, std::string path)
      : file_(&file), value_(value), path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  const std::string& file() const { return *file_; }
  JsonValue value() const { return value_; }

  [[noreturn]] void Broken(std::string_view what) const { ThrowBroken(*file_, path_, what); }
  [[noreturn]] void Unsupported(std::string_view what) const {
    ThrowUnsupported(*file_, path_, what);
  }

  std::string_view String() const {
    if (const auto text = value_.AsString()) return *text;
    Broken("must be a string");
  }
  bool Bool() const {
    if (const auto flag = value_.AsBool()) return *flag;
    Broken("must be true or false");
  }
  int64_t Int() const {
    if (const auto number = value_.AsInt()) return *number;
    Broken("must be an integer");
  }
  std::vector<Field> Items() const {
    if (!value_.IsArray()) Broken("must be an array");
    std::vector<Field> items;
    value_.ForEachItem([&](size_t i, JsonValue item) {
      items.emplace_back(*file_, item, path_ + "[" + std::to_string(i) + "]");
    });
    return items;
  }

  std::optional<Field> Find(const char* key) const {
    if (!value_.IsObject()) Broken("must be an object");
    const std::optional<JsonValue> member = value_.Find(key);
    if (!member) return std::nullopt;
    return Field(*file_, *member, path_.empty() ? key : path_ + "." + key);
  }
  Field At(const char* key) const {
    if (auto member = Find(key)) return *member;
    ThrowBroken(*file_, path_.empty() ? key : path_ + "." + key, "is missing");
  }
  bool BoolOr(const char* key, bool fallback) const {
    const auto member = Find(key);
    return member ? member->Bool() : fallback;
  }
  std::string Type() const { return std::string(At("type").String()); }
  [[noreturn]] void UnsupportedType() const {
    ThrowUnsupported(*file_, path_ + ".type", QuotedSpelling(Type()) + " is not supported");
  }

 private:
  const std::string* file_;
  JsonValue value_;
  std::string path_;
};

// Literal text to look for: {"String": "..."}.
std::string LiteralPattern(const Field& pattern) {
  const auto literal = pattern.Find("String");
  if (!literal) pattern.Unsupported("must be a String: other patterns are not supported here");
  if (literal->String().empty()) literal->Broken("must not be empty");
  return std::string(literal->String());
}

void ReadNormalizer(const Field& field, std::vector<NormalizerStep>& steps) {
  const std::string type = field.Type();
  if (type == "Sequence") {
    for (const Field& item : field.At("normalizers").Items()) ReadNormalizer(item, steps);
  } else if (type == "NFC") {
    steps.emplace_back(NormalForm::kNfc);
  } else if (type == "NFD") {
    steps.emplace_back(NormalForm::kNfd);
  } else if (type == "NFKC") {
    steps.emplace_back(NormalForm::kNfkc);
  } else if (type == "NFKD") {
    steps.emplace_back(NormalForm::kNfkd);
  } else if (type == "Prepend") {
    steps.emplace_back(PrependText{std::string(field.At("prepend").String())});
  } else if (type == "Replace") {
    steps.emplace_back(ReplaceText{LiteralPattern(field.At("pattern")),
                                   std::string(field.At("content").String())});
  } else {
    field.UnsupportedType();
  }
}

SplitBehavior ReadBehavior(const Field& field) {
  const std::string_view name = field.String();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  field.Broken("must be a split behavior, got " + QuotedSpelling(name));
}

Pattern CompilePattern(std::string_view pattern, const Field& field) {
  return Pattern::Compile(pattern, field.file() + ": " + field.path());
}

Pretokenizer::Stage ReadSplit(const Field& field) {
  const SplitBehavior behavior = ReadBehavior(field.At("behavior"));
  const bool invert = field.BoolOr("invert", false);
  const Field pattern = field.At("pattern");
  if (pattern.Find("String")) return PatternSplit{LiteralPattern(pattern), behavior, invert};
  const Field regex = pattern.At("Regex");
  // The one pattern that needs no engine; its matches leave no gaps, so nothing is lost by it.
  if (regex.String() == kGpt2Pattern && behavior == SplitBehavior::kIsolated) return Gpt2Split{};
  return PatternSplit{CompilePattern(regex.String(), regex), behavior, invert};
}

struct PretokenizerSpec {
  std::vector<Pretokenizer::Stage> stages;
  bool byte_level = false;
};

void ReadPretokenizer(const Field& field, PretokenizerSpec& spec) {
  // ByteLevel respells the text, so what follows it would look at spellings instead.
  if (spec.byte_level) field.Unsupported("behind ByteLevel is not supported");
  const std::string type = field.Type();
  if (type == "Sequence") {
    for (const Field& item : field.At("pretokenizers").Items()) ReadPretokenizer(item, spec);
  } else if (type == "Split") {
    spec.stages.push_back(ReadSplit(field));
  } else if (type == "Digits") {
    const bool individual = field.BoolOr("individual_digits", false);
    spec.stages.push_back(
        PatternSplit{CompilePattern("\\p{N}", field),
                     individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false});
  } else if (type == "ByteLevel") {
    if (field.BoolOr("add_prefix_space", true)) spec.stages.push_back(PrefixSpace{});
    if (field.BoolOr("use_regex", true)) spec.stages.push_back(Gpt2Split{});
    spec.byte_level = true;
  } else {
    field.UnsupportedType();
  }
}

struct DecoderSpec {
  SpellingRules rules;
  bool byte_level = false;
  bool strips_leading_space = false;
};

void ReadDecoder(const Field& field, DecoderSpec& spec) {
  const std::string type = field.Type();
  if (type == "Sequence") {
    for (const Field& item : field.At("decoders").Items()) ReadDecoder(item, spec);
  } else if (type == "ByteLevel") {
    spec.byte_level = true;
  } else if (type == "ByteFallback") {
    spec.rules.byte_fallback = true;
  } else if (type == "Fuse") {
    // Joins the tokens' texts, which is what decoding is here anyway.
  } else if (type == "Replace") {
    const Field pattern = field.At("pattern");
    ReplaceText rule{LiteralPattern(pattern), std::string(field.At("content").String())};
    // Applied token by token, which a longer text could see.
    if (NextUtf8(rule.from).size != rule.from.size()) {
      pattern.Unsupported("longer than one character is not supported in a decoder");
    }
    spec.rules.replacements.push_back(std::move(rule));
  } else if (type == "Strip") {
    const bool known = field.At("content").String() == " " && field.At("start").Int() <= 1 &&
                       field.At("stop").Int() == 0;
    if (!known) field.Unsupported("is only supported for one space at the start");
    spec.strips_leading_space = field.At("start").Int() == 1;
  } else {
    field.UnsupportedType();
  }
}

// The token that a post-processor puts before a text.
std::optional<TokenId> ReadTemplateBos(const Field& field) {
  const std::string type = field.Type();
  if (type == "Sequence") {
    std::optional<TokenId> bos;
    for (const Field& item : field.At("processors").Items()) {
      if (const auto found = ReadTemplateBos(item)) bos = found;
    }
    return bos;
  }
  if (type == "ByteLevel") return std::nullopt;  // concerns offsets only
  if (type != "TemplateProcessing") field.UnsupportedType();
  const std::vector<Field> single = field.At("single").Items();
  if (single.empty()) return std::nullopt;
  const auto special = single.front().Find("SpecialToken");
  if (!special) return std::nullopt;
  const std::string name(special->At("id").String());
  const Field ids = field.At("special_tokens").At(name.c_str()).At("ids");
  const std::vector<Field> items = ids.Items();
  if (items.size() != 1) ids.Unsupported("must hold one id: longer ones are not supported");
  const int64_t id = items.front().Int();
  if (id < 0 || id > INT32_MAX) items.front().Broken("must be an id");
  return static_cast<TokenId>(id);
}

void ReadAddedTokens(const Field& field, BpeBuilder& builder) {
  std::unordered_set<std::string_view> seen;
  for (const Field& item : field.Items()) {
    const std::string_view content = item.At("content").String();
    const int64_t id = item.At("id").Int();
    if (id < 0 || id > INT32_MAX) item.At("id").Broken("must be an id, got " + std::to_string(id));
    if (!seen.insert(content).second) item.Broken("repeats " + QuotedSpelling(content));
    builder.AddAddedToken({.content = std::string(content),
                           .id = static_cast<TokenId>(id),
                           .special = item.BoolOr("special", false),
                           .single_word = item.BoolOr("single_word", false),
                           .lstrip = item.BoolOr("lstrip", false),
                           .rstrip = item.BoolOr("rstrip", false),
                           .normalized = item.BoolOr("normalized", false)},
                          item.path());
  }
}

void ReadMerges(const Field& field, BpeBuilder& builder) {
  if (!field.value().IsArray()) field.Broken("must be an array");
  builder.SetMerges(field.value().size());
  // Hundreds of thousands of items: no Field for each.
  field.value().ForEachItem([&](size_t i, JsonValue item) {
    const std::string path = field.path() + "[" + std::to_string(i) + "]";
    if (const auto line = item.AsString()) {
      builder.AddMerge(*line, path);
      return;
    }
    std::vector<std::string_view> pair;
    item.ForEachItem([&](size_t, JsonValue side) {
      if (const auto text = side.AsString(); text && pair.size() < 3) pair.push_back(*text);
    });
    if (item.size() != 2 || pair.size() != 2) {
      ThrowBroken(field.file(), path, "must be \"left right\" or [\"left\", \"right\"]");
    }
    builder.AddMerge(pair[0], pair[1], path);
  });
}

void CheckModelKind(const Field& model) {
  if (const auto type = model.Find("type"); type && type->String() != "BPE") {
    model.UnsupportedType();
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto affix = model.Find(key);
    if (affix && !affix->String().empty()) affix->Unsupported("is not supported");
  }
  if (const auto dropout = model.Find("dropout")) {
    if (dropout->value().AsInt() != 0) dropout->Unsupported("is not supported");
  }
}

}  // namespace

LoadedTokenizerJson LoadTokenizerJson(std::string_view text, const std::string& file) {
  const JsonDocument document = JsonDocument::Parse(text, file);
  const Field root(file, document.root(), "");
  if (!root.value().IsObject()) ThrowBroken(file, "the file", "must be a JSON object");
  const Field model = root.At("model");
  CheckModelKind(model);

  std::vector<NormalizerStep> normalizer;
  if (const auto field = root.Find("normalizer")) ReadNormalizer(*field, normalizer);
  PretokenizerSpec pretokenizer;
  if (const auto field = root.Find("pre_tokenizer")) ReadPretokenizer(*field, pretokenizer);
  DecoderSpec decoder;
  if (const auto field = root.Find("decoder")) {
    ReadDecoder(*field, decoder);
    if (decoder.byte_level != pretokenizer.byte_level) {
      field->Unsupported("must be ByteLevel exactly where the pre_tokenizer is");
    }
  } else if (!pretokenizer.byte_level) {
    ThrowUnsupported(file, "decoder", "must be given unless the pre_tokenizer is ByteLevel");
  }

  BpeBuilder builder(file, pretokenizer.byte_level, model.At("vocab").value(), "model.vocab");
  ReadMerges(model.At("merges"), builder);
  if (const auto field = root.Find("added_tokens")) ReadAddedTokens(*field, builder);

  BpeOptions options{.byte_level = pretokenizer.byte_level,
                     .byte_fallback = model.BoolOr("byte_fallback", false),
                     .fuse_unk = model.BoolOr("fuse_unk", false),
                     .ignore_merges = model.BoolOr("ignore_merges", false)};
  if (const auto unk = model.Find("unk_token")) {
    options.unk = builder.Find(unk->String());
    if (!options.unk)
      unk->Broken("is " + QuotedSpelling(unk->String()) + ", not in the vocabulary");
  }

  LoadedTokenizerJson loaded;
  std::vector<std::string> texts = builder.Texts(decoder.rules);
  if (const auto field = root.Find("post_processor")) {
    loaded.template_bos = ReadTemplateBos(*field);
    if (loaded.template_bos && static_cast<size_t>(*loaded.template_bos) >= texts.size()) {
      field->Broken("puts an id before the text that is not in the vocabulary");
    }
  }
  std::vector<AddedToken> added_tokens = builder.added_tokens();
  loaded.tokenizer = std::make_unique<BpeTokenizer>(
      BpeTokenizerParts{.model = std::move(builder).BuildModel(options),
                        .normalizer = std::move(normalizer),
                        .pretokenizer = Pretokenizer(std::move(pretokenizer.stages)),
                        .added_tokens = std::move(added_tokens),
                        .texts = std::move(texts),
                        .strips_leading_space = decoder.strips_leading_space});
  return loaded;
}

}  // namespace tandem::engine
