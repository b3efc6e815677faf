#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "training/data/parquet/metadata.h"
#include "training/data/parquet/place.h"

// The schema as rows have it: values, structs and lists, whatever groups the file spells them with,
// and for each the definition and repetition levels that tell null, empty and present apart.
namespace tandem::training {

enum class ValueKind { kBool, kInt, kUint32, kUint64, kDouble, kString, kNull };

// A column of values as it lies in the file.
struct ParquetLeaf {
  std::string path;  // "messages.list.element.content"
  ParquetType type = ParquetType::kBoolean;
  ValueKind kind = ValueKind::kBool;
  bool is_text = true;  // kString: declared as text, not only as bytes
  int max_definition = 0;
  int max_repetition = 0;
};

struct ParquetField {
  enum class Kind { kValue, kStruct, kList };
  Kind kind = Kind::kValue;
  std::string name;
  int definition = 0;          // the level from which on it is not null
  int repetition = 0;          // kList: the level of an element that is not the first
  int element_definition = 0;  // kList: the level from which on there is an element
  size_t first_leaf = 0;
  size_t n_leaves = 0;
  std::vector<ParquetField> children;  // kStruct: its fields; kList: the element
  std::string refusal;                 // why it cannot be read; empty: it can
};

struct ParquetSchema {
  std::vector<ParquetField> columns;
  std::vector<ParquetLeaf> leaves;
};

// Throws kDataLoss for a schema that is no tree, kUnsupported beyond the limits of depth and for
// names that occur twice in one struct. What cannot be read but is well formed gets a `refusal`.
ParquetSchema BuildSchema(std::span<const SchemaElement> elements, const ParquetPlace& place);

// "list<struct<content: string, role: string>>"
std::string TypeText(const ParquetField& field, const ParquetSchema& schema);

}  // namespace tandem::training
