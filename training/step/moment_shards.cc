#include "training/step/moment_shards.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "engine/base/error.h"

namespace tandem::training {
namespace {

constexpr int64_t kMovedAtOnce = int64_t{1} << 24;  // bytes

// Broadcasts `bytes` bytes of rank `root`. `from` is read there; `to` (null: not wanted) is written
// on the others.
void Pass(Collectives& ranks, int root, const std::byte* from, std::byte* to, int64_t bytes) {
  std::vector<std::byte> piece;
  for (int64_t at = 0; at < bytes; at += kMovedAtOnce) {
    piece.resize(static_cast<size_t>(std::min(kMovedAtOnce, bytes - at)));
    if (ranks.rank() == root) std::memcpy(piece.data(), from + at, piece.size());
    ranks.Broadcast(piece, root);
    if (ranks.rank() != root && to != nullptr) std::memcpy(to + at, piece.data(), piece.size());
  }
}

}  // namespace

GatheredMoments GatherMoments(Collectives& ranks, ParameterStore& parameters) {
  GatheredMoments gathered;
  for (const ParameterStore::MomentPart& part : parameters.MomentParts()) {
    std::byte* to = nullptr;
    if (ranks.is_first()) {
      const int64_t all =
          std::accumulate(part.part_bytes.begin(), part.part_bytes.end(), int64_t{0});
      gathered.buffers.emplace_back(static_cast<size_t>(all));
      to = gathered.buffers.back().data();
      gathered.tensors.push_back({part.name, {to, part.dtype, part.shape}});
    }
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const int64_t bytes = part.part_bytes[static_cast<size_t>(rank)];
      if (rank == 0 && ranks.is_first() && bytes > 0) {
        std::memcpy(to, part.own.data(), static_cast<size_t>(bytes));
      } else if (rank > 0) {
        Pass(ranks, rank, part.own.data(), to, bytes);
      }
      if (to != nullptr) to += bytes;
    }
  }
  return gathered;
}

void ScatterMoments(Collectives& ranks, ParameterStore& parameters,
                    const engine::SafetensorsFile* file, const std::string& source) {
  for (const ParameterStore::MomentPart& part : parameters.MomentParts()) {
    const std::byte* from = nullptr;
    if (file != nullptr) {
      const engine::ConstTensorView* theirs = file->Find(part.name);
      if (theirs == nullptr || theirs->shape != part.shape || theirs->dtype != part.dtype) {
        throw Error(ErrorCode::kDataLoss,
                    source + ": optimiser tensor " + part.name +
                        " is missing or has the wrong shape; set train.optimizer (type, state, "
                        "momentum) as at the start of the run");
      }
      from = theirs->data;
    }
    for (int rank = 0; rank < ranks.size(); ++rank) {
      const int64_t bytes = part.part_bytes[static_cast<size_t>(rank)];
      const bool is_mine = rank == ranks.rank();
      if (rank == 0) {
        if (is_mine && bytes > 0) {
          std::memcpy(part.own.data(), from, static_cast<size_t>(bytes));
        }
      } else {
        Pass(ranks, 0, from, is_mine ? part.own.data() : nullptr, bytes);
      }
      if (from != nullptr) from += bytes;
    }
  }
}

}  // namespace tandem::training
