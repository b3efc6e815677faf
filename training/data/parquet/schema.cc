#include "training/data/parquet/schema.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "engine/base/quoted.h"
#include "engine/base/utf8.h"

namespace tandem::training {
namespace {

constexpr int kMaxDepth = 64;           // levels fit in a byte, recursion fits on the stack
constexpr size_t kMaxPathBytes = 4096;  // of the names on the path to a column, kept for messages

struct Node {
  const SchemaElement* element = nullptr;
  std::vector<Node> children;
};

// Builds the tree from the flat list.
class TreeReader {
 public:
  TreeReader(std::span<const SchemaElement> elements, const ParquetPlace& place)
      : elements_(elements), place_(place) {}

  Node Read() {
    Node root = ReadNode(0);
    if (at_ != elements_.size()) place_.Broken("the schema has elements outside its tree");
    if (root.element->type) place_.Broken("the schema's root is a column");
    return root;
  }

 private:
  Node ReadNode(int depth) {
    if (depth > kMaxDepth) {
      place_.Refuse("columns nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    if (at_ == elements_.size()) place_.Broken("the schema ends within a group");
    Node node;
    node.element = &elements_[at_++];
    if (!IsValidUtf8(node.element->name)) {
      place_.Broken("column " + Quoted(node.element->name) + " has a name that is not UTF-8");
    }
    const int32_t n_children = node.element->n_children;
    if (node.element->type) {
      if (n_children != 0) place_.Broken("a column of the schema has children");
      return node;
    }
    if (n_children < 0 || static_cast<size_t>(n_children) > elements_.size() - at_ ||
        (n_children == 0 && depth > 0)) {
      place_.Broken("group " + Quoted(node.element->name) + " has " + std::to_string(n_children) +
                    " children");
    }
    node.children.reserve(static_cast<size_t>(n_children));
    for (int32_t i = 0; i < n_children; ++i) node.children.push_back(ReadNode(depth + 1));
    CheckNames(node);
    return node;
  }

  void CheckNames(const Node& node) const {
    std::vector<std::string_view> names;
    for (const Node& child : node.children) names.push_back(child.element->name);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) place_.Refuse("two columns have the name " + Quoted(*twice));
  }

  std::span<const SchemaElement> elements_;
  const ParquetPlace& place_;
  size_t at_ = 0;
};

// The levels at the present node of the walk.
struct Levels {
  int definition = 0;
  int repetition = 0;
};

class FieldBuilder {
 public:
  FieldBuilder(ParquetSchema& schema, const ParquetPlace& place) : schema_(schema), place_(place) {}

  ParquetField Build(const Node& node, Levels levels, const std::string& parent_path) {
    if (node.element->repetition != Repetition::kRepeated) {
      return BuildOnce(node, levels, parent_path);
    }
    // Repeated without a list group around it: a list that is never null.
    return BuildList(node, levels,
                     [&](Levels inner) { return BuildOnce(node, inner, parent_path); });
  }

 private:
  template <class BuildElement>
  ParquetField BuildList(const Node& node, Levels levels, BuildElement&& build_element) {
    ParquetField list;
    list.kind = ParquetField::Kind::kList;
    list.name = node.element->name;
    list.definition = levels.definition;
    list.element_definition = levels.definition + 1;
    list.repetition = levels.repetition + 1;
    list.first_leaf = schema_.leaves.size();
    list.children.push_back(build_element({levels.definition + 1, levels.repetition + 1}));
    list.n_leaves = schema_.leaves.size() - list.first_leaf;
    return list;
  }

  // Builds a node without its repetition, which the caller has handled.
  ParquetField BuildOnce(const Node& node, Levels levels, const std::string& parent_path) {
    const SchemaElement& element = *node.element;
    const std::string path = parent_path.empty() ? element.name : parent_path + "." + element.name;
    if (path.size() > kMaxPathBytes)
      place_.Refuse("column " + Quoted(path) + " has too long a name");
    if (element.repetition == Repetition::kOptional) ++levels.definition;
    if (element.type) return BuildValue(element, levels, path);
    if (element.annotation == Annotation::kList && node.children.size() == 1 &&
        node.children[0].element->repetition == Repetition::kRepeated) {
      return BuildAnnotatedList(node, levels, path);
    }
    ParquetField group;
    group.kind = ParquetField::Kind::kStruct;
    group.name = element.name;
    group.definition = levels.definition;
    group.first_leaf = schema_.leaves.size();
    if (element.annotation == Annotation::kList) {
      group.refusal = "its LIST is not a group around one repeated field";
    } else if (element.annotation != Annotation::kNone) {
      group.refusal = "its type " + std::string(element.annotation_name) +
                      " cannot be read; rewrite it as lists and structs";
    }
    for (const Node& child : node.children) group.children.push_back(Build(child, levels, path));
    group.n_leaves = schema_.leaves.size() - group.first_leaf;
    return group;
  }

  // The three-level list (group, repeated group, element), or the two-level list of older writers,
  // whose repeated field is the element. Follows the format's backward-compatibility rules.
  ParquetField BuildAnnotatedList(const Node& node, Levels levels, const std::string& path) {
    const Node& repeated = node.children[0];
    const std::string& name = repeated.element->name;
    const bool is_element = repeated.children.size() != 1 || name == "array" ||
                            name == node.element->name + "_tuple" ||
                            repeated.children[0].element->repetition == Repetition::kRepeated;
    return BuildList(node, levels, [&](Levels inner) {
      return is_element ? BuildOnce(repeated, inner, path)
                        : Build(repeated.children[0], inner, path + "." + name);
    });
  }

  ParquetField BuildValue(const SchemaElement& element, Levels levels, const std::string& path) {
    ParquetField field;
    field.name = element.name;
    field.definition = levels.definition;
    field.first_leaf = schema_.leaves.size();
    field.n_leaves = 1;
    ParquetLeaf leaf;
    leaf.path = path;
    leaf.type = *element.type;
    leaf.max_definition = levels.definition;
    leaf.max_repetition = levels.repetition;
    field.refusal = Classify(element, leaf);
    schema_.leaves.push_back(std::move(leaf));
    return field;
  }

  // Sets the kind of the values. Returns why they cannot be read, or an empty text.
  static std::string Classify(const SchemaElement& element, ParquetLeaf& leaf) {
    if (element.annotation == Annotation::kRefused) {
      return "its type " + std::string(element.annotation_name) +
             " cannot be read; cast it to a string or a number when writing the file";
    }
    if (element.annotation == Annotation::kNull) {
      leaf.kind = ValueKind::kNull;
    }
    const bool is_unsigned = element.annotation == Annotation::kUnsigned;
    ValueKind kind = ValueKind::kString;
    switch (leaf.type) {
      case ParquetType::kBoolean:
        kind = ValueKind::kBool;
        break;
      case ParquetType::kInt32:
        kind = is_unsigned ? ValueKind::kUint32 : ValueKind::kInt;
        break;
      case ParquetType::kInt64:
        kind = is_unsigned ? ValueKind::kUint64 : ValueKind::kInt;
        break;
      case ParquetType::kFloat:
      case ParquetType::kDouble:
        kind = ValueKind::kDouble;
        break;
      case ParquetType::kByteArray:
        leaf.is_text = element.annotation == Annotation::kText;
        break;
      default:
        return "its physical type " + NameOf(leaf.type) +
               " cannot be read; cast it to a string or a number when writing the file";
    }
    if (element.annotation != Annotation::kNull) leaf.kind = kind;
    return "";
  }

  ParquetSchema& schema_;
  const ParquetPlace& place_;
};

const char* KindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kBool:
      return "bool";
    case ValueKind::kInt:
      return "int";
    case ValueKind::kUint32:
    case ValueKind::kUint64:
      return "unsigned int";
    case ValueKind::kDouble:
      return "double";
    case ValueKind::kString:
      return "string";
    case ValueKind::kNull:
      return "null";
  }
  return "";
}

}  // namespace

ParquetSchema BuildSchema(std::span<const SchemaElement> elements, const ParquetPlace& place) {
  const Node root = TreeReader(elements, place).Read();
  ParquetSchema schema;
  FieldBuilder builder(schema, place);
  for (const Node& column : root.children) {
    schema.columns.push_back(builder.Build(column, {}, ""));
  }
  return schema;
}

std::string TypeText(const ParquetField& field, const ParquetSchema& schema) {
  switch (field.kind) {
    case ParquetField::Kind::kValue:
      return field.refusal.empty() ? KindName(schema.leaves[field.first_leaf].kind) : "unreadable";
    case ParquetField::Kind::kList:
      return "list<" + TypeText(field.children[0], schema) + ">";
    case ParquetField::Kind::kStruct:
      break;
  }
  std::string text = "struct<";
  for (const ParquetField& child : field.children) {
    if (text.back() != '<') text += ", ";
    text += child.name + ": " + TypeText(child, schema);
  }
  return text + ">";
}

}  // namespace tandem::training
