#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/tokenizer/decoder.h"
#include "engine/tokenizer/files/json_field.h"
#include "engine/tokenizer/models/token_model.h"
#include "engine/tokenizer/normalizers/normalizer.h"
#include "engine/tokenizer/pretokenizers/pretokenizer.h"
#include "engine/tokenizer/vocabulary.h"

// Readers of the parts of a tokenizer.json. Each kind of part has a file json_<part>s.cc, in which
// every component is one function and one table entry.
namespace tandem::engine {

template <class Out>
struct JsonComponent {
  std::string_view type;
  void (*read)(const Field& field, Out& out);
};

// Reads the component at `field` into `out`. Throws kUnsupported for a type outside the table.
template <class Out, size_t n>
void ReadComponent(const JsonComponent<Out> (&table)[n], const Field& field, Out& out) {
  const std::string type = field.Type();
  for (const JsonComponent<Out>& component : table) {
    if (component.type == type) return component.read(field, out);
  }
  field.UnsupportedType();
}

struct NormalizerSpec {
  std::vector<Normalizer::Step> steps;
  bool byte_level = false;
};
void ReadNormalizer(const Field& field, NormalizerSpec& spec);

struct PretokenizerSpec {
  std::vector<Pretokenizer::Stage> stages;
  // Whether a stage spells bytes as characters. If it is the last one, `stages` omits it, so that
  // the model may work on bytes.
  bool byte_level = false;
  bool byte_level_is_last = false;
};
void ReadPretokenizer(const Field& field, PretokenizerSpec& spec);

struct DecoderSpec {
  Decoder decoder;
  bool strips_leading_space = false;  // by a rule outside decoder.rules
  bool is_byte_level = false;         // only ByteLevel and rules
  // The state of reading; later parts do not use it.
  bool fused = false;     // an earlier step joins tokens
  bool to_bytes = false;  // an earlier step makes bytes, so tokens may be parts of characters
  bool has_other_steps = false;
};
void ReadDecoder(const Field& field, DecoderSpec& spec);

// Tokens put around every text.
struct PostProcessorSpec {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};
void ReadPostProcessor(const Field& field, PostProcessorSpec& spec);

// The model and the tokens of the file. `byte_level`: reads the vocabulary as bytes.
struct JsonModel {
  std::unique_ptr<TokenModel> model;
  Vocabulary vocabulary;
};
JsonModel ReadModel(const Field& root, bool byte_level);
// Whether the model could work on bytes instead of their spellings.
bool MayWorkOnBytes(const Field& model);

// ReadLiteral reads {"String": "..."}, which must not be empty; CompilePattern reads {"Regex":
// "..."}.
std::string ReadLiteral(const Field& pattern);
Pattern CompilePattern(const Field& regex);

}  // namespace tandem::engine
