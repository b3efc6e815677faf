#include "training/data/scanned_rows.h"

#include <utility>

#include "engine/base/check.h"

namespace tandem::training {
namespace {

constexpr int64_t kStride = 32;

}  // namespace

ScannedRows::ScannedRows(std::shared_ptr<const void> file, std::string_view text, std::string name)
    : file_(std::move(file)), text_(text), name_(std::move(name)) {}

void ScannedRows::Index(Cursor begin) {
  Cursor at = begin;
  Row row;
  for (;;) {
    const Cursor before = at;
    if (!Next(&at, &row)) break;
    if (n_rows_ % kStride == 0) places_.push_back(before);
    ++n_rows_;
  }
}

ScannedRows::Row ScannedRows::Find(int64_t i) const {
  TANDEM_CHECK(i >= 0 && i < n_rows_);
  Cursor at = places_[static_cast<size_t>(i / kStride)];
  Row row;
  for (int64_t skipped = 0; skipped <= i % kStride; ++skipped) TANDEM_CHECK(Next(&at, &row));
  return row;
}

std::string ScannedRows::Where(int64_t i) const { return "line " + std::to_string(Find(i).line); }

}  // namespace tandem::training
