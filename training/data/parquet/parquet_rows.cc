#include "training/data/parquet/parquet_rows.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "training/data/parquet/column_reader.h"
#include "training/data/parquet/row_assembly.h"

namespace tandem::training {
namespace {

using Json = nlohmann::ordered_json;

ParquetPlace ColumnPlace(const ParquetFile& file, size_t group_idx, const std::string& column) {
  return {file.name() + ": row group " + std::to_string(group_idx) + ": column " + Quoted(column)};
}

// The first unsupported type within a column.
std::optional<Error> FaultOfType(const ParquetFile& file, const ParquetField& field,
                                 const std::string& path) {
  if (!field.refusal.empty()) {
    return ParquetPlace{file.name() + ": column " + Quoted(path)}.Refusal(field.refusal);
  }
  for (const ParquetField& child : field.children) {
    if (auto fault = FaultOfType(file, child, path + "." + child.name)) return fault;
  }
  return std::nullopt;
}

// Why the column cannot be read, from the footer alone.
std::optional<Error> FaultOf(const ParquetFile& file, const ParquetField& column) {
  if (auto fault = FaultOfType(file, column, column.name)) return fault;
  const auto& groups = file.metadata().row_groups;
  for (size_t group_idx = 0; group_idx < groups.size(); ++group_idx) {
    for (size_t i = 0; i < column.n_leaves; ++i) {
      const size_t leaf = column.first_leaf + i;
      const std::string refusal = RefusalOf(groups[group_idx].columns[leaf]);
      if (refusal.empty()) continue;
      return ColumnPlace(file, group_idx, file.schema().leaves[leaf].path).Refusal(refusal);
    }
  }
  return std::nullopt;
}

bool HasBytes(const ParquetFile& file, const ParquetField& column) {
  for (size_t i = 0; i < column.n_leaves; ++i) {
    const ParquetLeaf& leaf = file.schema().leaves[column.first_leaf + i];
    if (leaf.kind == ValueKind::kString && !leaf.is_text) return true;
  }
  return false;
}

std::vector<const ParquetField*> Choose(const ParquetFile& file,
                                        std::span<const std::string> names) {
  std::vector<const ParquetField*> columns;
  const std::vector<ParquetField>& all = file.schema().columns;
  if (names.empty()) {
    for (const ParquetField& column : all) columns.push_back(&column);
  }
  std::unordered_set<std::string> chosen;
  for (const std::string& name : names) {
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const ParquetField& column) { return column.name == name; });
    if (found == all.end()) {
      throw Error(ErrorCode::kInvalidArgument, file.name() + ": has no column " + Quoted(name) +
                                                   "; it has " +
                                                   Quoted(file.DescribeColumns(), 400));
    }
    if (!chosen.insert(name).second) {
      throw Error(ErrorCode::kInvalidArgument, "column " + Quoted(name) + " is requested twice");
    }
    columns.push_back(&*found);
  }
  for (const ParquetField* column : columns) {
    if (const auto fault = FaultOf(file, *column)) throw *fault;
  }
  return columns;
}

}  // namespace

std::vector<std::string> ReadableColumns(const ParquetFile& file) {
  std::vector<std::string> names;
  for (const ParquetField& column : file.schema().columns) {
    if (!HasBytes(file, column) && !FaultOf(file, column)) names.push_back(column.name);
  }
  return names;
}

struct ParquetRows::DecodedGroup {
  size_t group_idx = 0;
  int64_t bytes = 0;
  std::vector<std::vector<LeafColumn>> columns;  // for each of columns_, its leaves
};

ParquetRows::ParquetRows(std::shared_ptr<const ParquetFile> file,
                         std::span<const std::string> columns, ParquetOptions options)
    : file_(std::move(file)), columns_(Choose(*file_, columns)), options_(options) {
  int64_t end = 0;
  for (const RowGroup& group : file_->metadata().row_groups) {
    end += group.n_rows;
    group_ends_.push_back(end);
  }
}

ParquetRows::~ParquetRows() = default;
ParquetRows::ParquetRows(ParquetRows&&) noexcept = default;

void ParquetRows::DropCache() {
  cache_.clear();
  cached_bytes_ = 0;
}

Json ParquetRows::JsonRow(int64_t i) {
  TANDEM_CHECK(i >= 0 && i < size());
  const auto end = std::upper_bound(group_ends_.begin(), group_ends_.end(), i);
  const auto group_idx = static_cast<size_t>(end - group_ends_.begin());
  const int64_t begin = *end - file_->metadata().row_groups[group_idx].n_rows;
  const DecodedGroup& group = Group(group_idx);
  Json row = Json::object();
  auto& items = row.get_ref<Json::object_t&>();
  items.reserve(columns_.size());
  for (size_t c = 0; c < columns_.size(); ++c) {
    const ParquetPlace place = ColumnPlace(*file_, group_idx, columns_[c]->name);
    Json value =
        AssembleValue(*columns_[c], group.columns[c], static_cast<size_t>(i - begin), place);
    items.push_back({columns_[c]->name, std::move(value)});
  }
  return row;
}

const ParquetRows::DecodedGroup& ParquetRows::Group(size_t group_idx) {
  const auto found = std::find_if(cache_.begin(), cache_.end(), [&](const DecodedGroup& group) {
    return group.group_idx == group_idx;
  });
  if (found != cache_.end()) {
    cache_.splice(cache_.begin(), cache_, found);
    return cache_.front();
  }
  cache_.push_front(Decode(group_idx));
  cached_bytes_ += cache_.front().bytes;
  while (cached_bytes_ > options_.cache_bytes && cache_.size() > 1) {
    cached_bytes_ -= cache_.back().bytes;
    cache_.pop_back();
  }
  return cache_.front();
}

ParquetRows::DecodedGroup ParquetRows::Decode(size_t group_idx) const {
  const RowGroup& group = file_->metadata().row_groups[group_idx];
  DecodeBudget budget(options_.row_group_bytes);
  DecodedGroup decoded;
  decoded.group_idx = group_idx;
  for (const ParquetField* column : columns_) {
    std::vector<LeafColumn>& leaves = decoded.columns.emplace_back();
    for (size_t i = 0; i < column->n_leaves; ++i) {
      const size_t leaf_idx = column->first_leaf + i;
      const ParquetLeaf& leaf = file_->schema().leaves[leaf_idx];
      const ParquetPlace place = ColumnPlace(*file_, group_idx, leaf.path);
      leaves.push_back(
          {&leaf, DecodeColumn(file_->bytes(), file_->metadata().data_end, group.columns[leaf_idx],
                               leaf, group.n_rows, place, budget)});
    }
  }
  decoded.bytes = budget.taken();
  return decoded;
}

}  // namespace tandem::training
