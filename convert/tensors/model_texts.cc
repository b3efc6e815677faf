#include "convert/tensors/model_texts.h"

#include <array>

#include "engine/tools/merge_adapter.h"

namespace tandem::convert {
namespace {

constexpr std::array kTexts = {
    "config.json",        "generation_config.json",  "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model",    "special_tokens_map.json", "added_tokens.json",  "vocab.json",
    "merges.txt",         "chat_template.jinja",     "chat_template.json", "qwen.tiktoken",
    "tokenizer.tiktoken", "tiktoken.model"};

}  // namespace

std::map<std::string, std::string> TextsOf(const ModelSource& source,
                                           std::optional<engine::DType> dtype) {
  std::map<std::string, std::string> texts;
  for (const char* name : kTexts) {
    if (auto text = source.ReadText(name)) texts[name] = std::move(*text);
  }
  if (dtype) texts["config.json"] = engine::ConfigWithDType(texts["config.json"], *dtype);
  return texts;
}

}  // namespace tandem::convert
