#include "engine/tokenizer/readers/tokenizer_json.h"

#include "engine/tokenizer/pipeline_tokenizer.h"
#include "engine/tokenizer/readers/json_components.h"

namespace tandem::engine {
namespace {

// Without a decoder, tokens are joined with spaces.
void JoinWithSpaces(DecoderSpec& spec) {
  spec.decoder.steps.push_back(
      [](std::string token, TokenPlace place) { return place.first ? token : " " + token; });
  spec.decoder.first_differs = true;
}

void CheckIds(const Field& field, const std::vector<TokenId>& ids, size_t vocab_size) {
  for (const TokenId id : ids) {
    if (static_cast<size_t>(id) >= vocab_size) {
      field.Broken("adds the token id " + std::to_string(id) + ", which is not in the vocabulary");
    }
  }
}

}  // namespace

LoadedTokenizerJson LoadTokenizerJson(std::string_view text, const std::string& file) {
  const JsonDocument document = JsonDocument::Parse(text, file);
  const Field root(file, document.root(), "");
  if (!root.value().IsObject()) ThrowBroken(file, "the file", "must be a JSON object");

  NormalizerSpec normalizer;
  if (const auto field = root.Find("normalizer")) ReadNormalizer(*field, normalizer);
  PretokenizerSpec pretokenizer;
  const auto pretokenizer_field = root.Find("pre_tokenizer");
  if (pretokenizer_field) ReadPretokenizer(*pretokenizer_field, pretokenizer);
  if (normalizer.byte_level && pretokenizer.byte_level) {
    pretokenizer_field->Unsupported(
        "ByteLevel after a ByteLevel normalizer is not supported: remove one");
  }
  DecoderSpec decoder;
  const auto decoder_field = root.Find("decoder");
  if (decoder_field) ReadDecoder(*decoder_field, decoder);

  // The common case: tokens are bytes throughout, and spellings are never used.
  const bool on_bytes = pretokenizer.byte_level_is_last && MayWorkOnBytes(root.At("model")) &&
                        (!decoder_field || decoder.is_byte_level);
  JsonModel model = ReadModel(root, on_bytes);
  TokenizerParts parts;
  parts.Take(model.vocabulary);
  if (on_bytes) {
    decoder.decoder.steps.clear();
  } else {
    if (pretokenizer.byte_level_is_last) pretokenizer.stages.push_back(ByteLevelCut());
    parts.spells_bytes = pretokenizer.byte_level || normalizer.byte_level;
    if (!decoder_field) JoinWithSpaces(decoder);
  }
  parts.model = std::move(model.model);
  parts.normalizer = Normalizer(std::move(normalizer.steps));
  parts.pretokenizer = Pretokenizer(std::move(pretokenizer.stages));
  parts.decoder = std::move(decoder.decoder);
  parts.strips_leading_space = decoder.strips_leading_space;

  LoadedTokenizerJson loaded;
  if (const auto field = root.Find("post_processor")) {
    PostProcessorSpec around;
    ReadPostProcessor(*field, around);
    CheckIds(*field, around.prefix, parts.spellings.size());
    CheckIds(*field, around.suffix, parts.spellings.size());
    loaded.prefix = std::move(around.prefix);
    loaded.suffix = std::move(around.suffix);
  }
  loaded.tokenizer = std::make_unique<PipelineTokenizer>(std::move(parts));
  return loaded;
}

}  // namespace tandem::engine
