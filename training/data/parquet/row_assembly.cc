#include "training/data/parquet/row_assembly.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/quoted.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;

// Walks one leaf's entries of one row.
class LeafCursor {
 public:
  LeafCursor(const LeafColumn& column, size_t row) : leaf_(*column.leaf), column_(column.column) {
    const auto& entries = column_.row_entries;
    entry_ = entries.empty() ? row : entries[row];
    end_ = entries.empty() ? row + 1 : entries[row + 1];
    value_ = column_.row_values.empty() ? row : column_.row_values[row];
  }

  const ParquetLeaf& leaf() const { return leaf_; }
  bool at_end() const { return entry_ == end_; }
  // REQUIRES: !at_end().
  int repetition() const { return column_.repetitions.empty() ? 0 : column_.repetitions[entry_]; }
  int definition() const { return column_.definitions.empty() ? 0 : column_.definitions[entry_]; }
  void SkipNull() { ++entry_; }
  // REQUIRES: the entry has a value.
  Json TakeValue() {
    ++entry_;
    const size_t i = value_++;
    switch (leaf_.kind) {
      case ValueKind::kBool:
        return column_.integers[i] != 0;
      case ValueKind::kInt:
        return column_.integers[i];
      case ValueKind::kUint32:
        return static_cast<uint32_t>(column_.integers[i]);
      case ValueKind::kUint64:
        return static_cast<uint64_t>(column_.integers[i]);
      case ValueKind::kDouble:
        return column_.doubles[i];
      case ValueKind::kString:
        return column_.strings[i];
      case ValueKind::kNull:
        return nullptr;
    }
    return nullptr;
  }

 private:
  const ParquetLeaf& leaf_;
  const DecodedColumn& column_;
  size_t entry_ = 0;
  size_t end_ = 0;
  size_t value_ = 0;
};

class Assembler {
 public:
  Assembler(const ParquetField& column, std::span<const LeafColumn> leaves, size_t row,
            const ParquetPlace& place)
      : first_leaf_(column.first_leaf), row_(row), place_(place) {
    cursors_.reserve(leaves.size());
    for (const LeafColumn& leaf : leaves) cursors_.emplace_back(leaf, row);
  }

  Json Assemble(const ParquetField& column) {
    Json value = Read(column, 0, 0);
    for (const LeafCursor& cursor : cursors_) {
      if (!cursor.at_end()) Disagree(cursor);
    }
    return value;
  }

 private:
  [[noreturn]] void Disagree(const LeafCursor& cursor) const {
    place_.Broken("row " + std::to_string(row_) + ": the levels of " + Quoted(cursor.leaf().path) +
                  " contradict those of its sibling columns");
  }

  std::span<LeafCursor> Leaves(const ParquetField& field) {
    return std::span(cursors_).subspan(field.first_leaf - first_leaf_, field.n_leaves);
  }

  // The definition level of the next entry. The entry must have this repetition level and a
  // definition level of at least `present`.
  int Peek(const LeafCursor& cursor, int repetition, int present) const {
    if (cursor.at_end() || cursor.repetition() != repetition || cursor.definition() < present) {
      Disagree(cursor);
    }
    return cursor.definition();
  }

  // All leaves below a null or an empty list have one entry of the same level.
  void PassOver(const ParquetField& field, int repetition, int definition) {
    for (LeafCursor& cursor : Leaves(field)) {
      if (Peek(cursor, repetition, definition) != definition) Disagree(cursor);
      cursor.SkipNull();
    }
  }

  Json Read(const ParquetField& field, int repetition, int present) {
    LeafCursor& first = Leaves(field).front();
    const int definition = Peek(first, repetition, present);
    switch (field.kind) {
      case ParquetField::Kind::kValue:
        if (definition == first.leaf().max_definition) return first.TakeValue();
        first.SkipNull();
        return nullptr;
      case ParquetField::Kind::kStruct:
        if (definition < field.definition) {
          PassOver(field, repetition, definition);
          return nullptr;
        }
        return ReadStruct(field, repetition);
      case ParquetField::Kind::kList:
        if (definition < field.element_definition) {
          PassOver(field, repetition, definition);
          return definition < field.definition ? Json(nullptr) : Json::array();
        }
        return ReadList(field, repetition);
    }
    return nullptr;
  }

  Json ReadStruct(const ParquetField& field, int repetition) {
    Json object = Json::object();
    // The names differ; inserting by name would search each time.
    auto& items = object.get_ref<Json::object_t&>();
    items.reserve(field.children.size());
    for (const ParquetField& child : field.children) {
      Json value = Read(child, repetition, field.definition);
      items.push_back({child.name, std::move(value)});
    }
    return object;
  }

  Json ReadList(const ParquetField& field, int repetition) {
    Json list = Json::array();
    const ParquetField& element = field.children[0];
    const LeafCursor& first = Leaves(field).front();
    list.push_back(Read(element, repetition, field.element_definition));
    while (!first.at_end() && first.repetition() == field.repetition) {
      list.push_back(Read(element, field.repetition, field.element_definition));
    }
    return list;
  }

  size_t first_leaf_;
  size_t row_;
  const ParquetPlace& place_;
  std::vector<LeafCursor> cursors_;
};

}  // namespace

Json AssembleValue(const ParquetField& field, std::span<const LeafColumn> leaves, size_t row,
                   const ParquetPlace& place) {
  return Assembler(field, leaves, row, place).Assemble(field);
}

}  // namespace tandem::training
