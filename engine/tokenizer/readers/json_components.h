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

// The parts of a tokenizer.json. Each kind of part has its file, json_<part>s.cc, in which every
// component is one function and one line of a table.
namespace tandem::engine {

template <class Out>
struct JsonComponent {
  std::string_view type;
  void (*read)(const Field& field, Out& out);
};

// Reads what `field` describes into `out`; throws kUnsupported for a type that is not in the table.
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
  // Bytes are spelled as characters, at most once; as the last stage, there is none for it: what
  // follows may work on bytes instead.
  bool byte_level = false;
  bool byte_level_is_last = false;
};
void ReadPretokenizer(const Field& field, PretokenizerSpec& spec);

struct DecoderSpec {
  Decoder decoder;
  bool strips_leading_space = false;  // by a rule that is not in decoder.rules
  bool is_byte_level = false;         // nothing but ByteLevel, and rules
  // While reading:
  bool fused = false;     // tokens are joined
  bool to_bytes = false;  // tokens may be parts of characters
  bool has_other_steps = false;
};
void ReadDecoder(const Field& field, DecoderSpec& spec);

// What stands around every text.
struct PostProcessorSpec {
  std::vector<TokenId> prefix;
  std::vector<TokenId> suffix;
};
void ReadPostProcessor(const Field& field, PostProcessorSpec& spec);

// The model, and the tokens of the file. `byte_level`: the vocabulary may be read as bytes.
struct JsonModel {
  std::unique_ptr<TokenModel> model;
  Vocabulary vocabulary;
};
JsonModel ReadModel(const Field& root, bool byte_level);
// Whether the model could work on bytes instead of their spellings.
bool MayWorkOnBytes(const Field& model);

// Shared readers. A literal: {"String": "..."}, not empty; a pattern: {"Regex": "..."}.
std::string ReadLiteral(const Field& pattern);
Pattern CompilePattern(const Field& regex);

}  // namespace tandem::engine
