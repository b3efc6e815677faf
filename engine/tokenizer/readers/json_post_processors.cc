#include <map>

#include "engine/tokenizer/readers/json_components.h"

namespace tandem::engine {
namespace {

// Known tokenizers put at most five tokens around a text.
constexpr size_t kMaxTokensAround = 1024;

void CheckTokensAround(const Field& field, size_t count) {
  if (count <= kMaxTokensAround) return;
  field.Broken("adds " + std::to_string(count) + " tokens around a text, more than the limit of " +
               std::to_string(kMaxTokensAround));
}

TokenId ReadId(const Field& field) {
  const int64_t id = field.Int();
  if (id < 0 || id > INT32_MAX)
    field.Broken("must be a token id in [0, 2147483647], got " + std::to_string(id));
  return static_cast<TokenId>(id);
}

void ReadSequence(const Field& field, PostProcessorSpec& spec) {
  for (const Field& item : field.At("processors").Items()) ReadPostProcessor(item, spec);
}

void ReadByteLevel(const Field&, PostProcessorSpec&) {}  // affects offsets only

// Reads a pair such as ["<s>", 0].
TokenId ReadPair(const Field& field) {
  const std::vector<Field> items = field.Items();
  if (items.size() != 2) field.Broken("must be an array of a token and its id");
  return ReadId(items[1]);
}

// Wraps the tokens of earlier processors.
void ReadBert(const Field& field, PostProcessorSpec& spec) {
  spec.prefix.insert(spec.prefix.begin(), ReadPair(field.At("cls")));
  spec.suffix.push_back(ReadPair(field.At("sep")));
}

// Linear in the file: a table finds the names, and both lists are bounded.
void ReadTemplate(const Field& field, PostProcessorSpec& spec) {
  const Field single = field.At("single");
  CheckTokensAround(single, single.value().size());
  std::map<std::string_view, JsonValue> special_tokens;
  if (const auto known = field.Find("special_tokens")) {
    known->value().ForEachMember(
        [&](std::string_view name, JsonValue token) { special_tokens.emplace(name, token); });
  }
  std::vector<TokenId> prefix, suffix;
  bool behind_text = false;
  for (const Field& item : single.Items()) {
    if (const auto sequence = item.Find("Sequence")) {
      if (behind_text) sequence->Unsupported("must not occur twice");
      behind_text = true;
      continue;
    }
    const Field name = item.At("SpecialToken").At("id");
    const auto token = special_tokens.find(name.String());
    if (token == special_tokens.end()) {
      name.Broken("is " + Quoted(name.String()) + ", which special_tokens does not define");
    }
    const std::string path = field.path() + ".special_tokens." + Quoted(name.String());
    const Field ids = Field(field.file(), token->second, path).At("ids");
    CheckTokensAround(ids, prefix.size() + suffix.size() + ids.value().size());
    for (const Field& id : ids.Items()) (behind_text ? suffix : prefix).push_back(ReadId(id));
  }
  spec.prefix.insert(spec.prefix.begin(), prefix.begin(), prefix.end());
  spec.suffix.insert(spec.suffix.end(), suffix.begin(), suffix.end());
}

constexpr JsonComponent<PostProcessorSpec> kPostProcessors[] = {
    {"Sequence", ReadSequence},           {"ByteLevel", ReadByteLevel},
    {"BertProcessing", ReadBert},         {"RobertaProcessing", ReadBert},
    {"TemplateProcessing", ReadTemplate},
};

}  // namespace

void ReadPostProcessor(const Field& field, PostProcessorSpec& spec) {
  ReadComponent(kPostProcessors, field, spec);
  CheckTokensAround(field, spec.prefix.size() + spec.suffix.size());
}

}  // namespace tandem::engine
