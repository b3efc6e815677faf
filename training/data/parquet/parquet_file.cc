#include "training/data/parquet/parquet_file.h"

#include <utility>

#include "engine/base/quoted.h"

namespace tandem::training {
namespace {

// Every row group must have every column with the schema's type; their rows must add up to the
// file's.
void CheckRowGroups(const FileMetadata& metadata, const ParquetSchema& schema,
                    const ParquetPlace& place) {
  int64_t n_rows = 0;
  for (size_t i = 0; i < metadata.row_groups.size(); ++i) {
    const RowGroup& group = metadata.row_groups[i];
    const ParquetPlace here{place.text + ": row group " + std::to_string(i)};
    if (group.columns.size() != schema.leaves.size()) {
      here.Broken(std::to_string(group.columns.size()) + " columns, but the schema has " +
                  std::to_string(schema.leaves.size()));
    }
    if (group.n_rows < 0 || __builtin_add_overflow(n_rows, group.n_rows, &n_rows)) {
      here.Broken("its number of rows, " + std::to_string(group.n_rows) + ", is invalid");
    }
    for (size_t leaf = 0; leaf < group.columns.size(); ++leaf) {
      const ColumnChunk& chunk = group.columns[leaf];
      if (chunk.type != schema.leaves[leaf].type && !chunk.is_encrypted) {
        here.Broken("column " + Quoted(schema.leaves[leaf].path) + " is of type " +
                    NameOf(chunk.type) + ", in the schema of " + NameOf(schema.leaves[leaf].type));
      }
    }
  }
  if (n_rows != metadata.n_rows) {
    place.Broken("its row groups have " + std::to_string(n_rows) +
                 " rows, but the footer declares " + std::to_string(metadata.n_rows));
  }
}

}  // namespace

ParquetFile::ParquetFile(std::span<const std::byte> bytes, const std::string& name)
    : place_{name},
      bytes_(bytes),
      metadata_(ReadFooter(bytes, place_)),
      schema_(BuildSchema(metadata_.schema, place_)) {
  CheckRowGroups(metadata_, schema_, place_);
}

std::shared_ptr<const ParquetFile> ParquetFile::Open(const std::filesystem::path& path) {
  auto mapped = engine::MappedFile::Open(path);
  auto file = std::shared_ptr<ParquetFile>(new ParquetFile(mapped->bytes(), path.string()));
  file->mapped_ = std::move(mapped);
  return file;
}

std::shared_ptr<const ParquetFile> ParquetFile::FromBytes(std::span<const std::byte> bytes,
                                                          const std::string& name) {
  return std::shared_ptr<ParquetFile>(new ParquetFile(bytes, name));
}

std::vector<std::string> ParquetFile::column_names() const {
  std::vector<std::string> names;
  for (const ParquetField& column : schema_.columns) names.push_back(column.name);
  return names;
}

std::string ParquetFile::DescribeColumns() const {
  std::string text;
  for (const ParquetField& column : schema_.columns) {
    if (!text.empty()) text += ", ";
    text += column.name + ": " + TypeText(column, schema_);
  }
  return text;
}

}  // namespace tandem::training
