#include "engine/tokenizer/json_components.h"

namespace tandem::engine {
namespace {

TokenId ReadId(const Field& field) {
  const int64_t id = field.Int();
  if (id < 0 || id > INT32_MAX) field.Broken("must be an id");
  return static_cast<TokenId>(id);
}

void ReadSequence(const Field& field, PostProcessorSpec& spec) {
  for (const Field& item : field.At("processors").Items()) ReadPostProcessor(item, spec);
}

void ReadByteLevel(const Field&, PostProcessorSpec&) {}  // concerns offsets only

// ["<s>", 0]
TokenId ReadPair(const Field& field) {
  const std::vector<Field> items = field.Items();
  if (items.size() != 2) field.Broken("must be a token and its id");
  return ReadId(items[1]);
}

// What is put around a text stays around it when another processor follows.
void ReadBert(const Field& field, PostProcessorSpec& spec) {
  spec.prefix.insert(spec.prefix.begin(), ReadPair(field.At("cls")));
  spec.suffix.push_back(ReadPair(field.At("sep")));
}

void ReadTemplate(const Field& field, PostProcessorSpec& spec) {
  std::vector<TokenId> prefix, suffix;
  bool behind_text = false;
  for (const Field& item : field.At("single").Items()) {
    if (const auto sequence = item.Find("Sequence")) {
      if (behind_text) sequence->Unsupported("a second time is not supported");
      behind_text = true;
      continue;
    }
    const std::string name(item.At("SpecialToken").At("id").String());
    const Field ids = field.At("special_tokens").At(name.c_str()).At("ids");
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
}

}  // namespace tandem::engine
