#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>

#include "training/data/parquet/column_reader.h"
#include "training/data/parquet/place.h"
#include "training/data/parquet/schema.h"

namespace tandem::training {

// A leaf of the schema with its values in one row group.
struct LeafColumn {
  const ParquetLeaf* leaf = nullptr;
  DecodedColumn column;
};

// Assembles a row of one top-level column from the levels of its leaves (Dremel's record assembly).
// Preserves nulls, empty lists and null lists. `leaves` holds the field's n_leaves leaves. Throws
// kDataLoss when the leaves contradict each other about a row's shape.
nlohmann::ordered_json AssembleValue(const ParquetField& field, std::span<const LeafColumn> leaves,
                                     size_t row, const ParquetPlace& place);

}  // namespace tandem::training
