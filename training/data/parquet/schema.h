#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "training/data/parquet/metadata.h"
#include "training/data/parquet/place.h"

// The logical schema of rows: values, structs and lists, independent of the groups that spell them.
// Holds the definition and repetition levels that distinguish null, empty and present.
namespace tandem::training {

enum class ValueKind { kBool, kInt, kUint32, kUint64, kDouble, kString, kNull };

// A column of values as stored in the file.
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
  int definition = 0;          // the lowest level at which it is not null
  int repetition = 0;          // kList: the level of every element after the first
  int element_definition = 0;  // kList: the lowest level with an element
  size_t first_leaf = 0;
  size_t n_leaves = 0;
  std::vector<ParquetField> children;  // kStruct: its fields; kList: the element
  std::string refusal;                 // why it cannot be read; empty: it can
};

struct ParquetSchema {
  std::vector<ParquetField> columns;
  std::vector<ParquetLeaf> leaves;
};

// Throws kDataLoss for a schema that is no tree. Throws kUnsupported beyond the depth limits and
// for duplicate names in a struct. Valid but unsupported fields get a `refusal`.
ParquetSchema BuildSchema(std::span<const SchemaElement> elements, const ParquetPlace& place);

// "list<struct<content: string, role: string>>"
std::string TypeText(const ParquetField& field, const ParquetSchema& schema);

}  // namespace tandem::training
