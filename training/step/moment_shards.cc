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

// The whole tensor of a part in the files.
const std::byte* FindIn(const TensorFiles& files, const ParameterStore::MomentPart& part,
                        const std::string& source) {
  const engine::ConstTensorView* theirs = files.Find(part.name);
  if (theirs == nullptr || theirs->shape != part.shape || theirs->dtype != part.dtype) {
    throw Error(ErrorCode::kDataLoss,
                source + ": optimiser tensor " + part.name +
                    " is missing or has the wrong shape; set train.optimizer (type, state, "
                    "momentum, ema_decay) as at the start of the run");
  }
  return theirs->data;
}

}  // namespace

void GatherParts(Collectives& ranks, int root, std::span<const std::byte> own,
                 std::span<const int64_t> part_bytes, std::byte* to, int first, int stride) {
  const bool is_root = ranks.rank() == root;
  for (size_t part = 0; part < part_bytes.size(); ++part) {
    const int64_t bytes = part_bytes[part];
    const int rank = first + static_cast<int>(part) * stride;
    if (rank != root) {
      Pass(ranks, rank, own.data(), is_root ? to : nullptr, bytes);
    } else if (is_root && bytes > 0) {
      std::memcpy(to, own.data(), static_cast<size_t>(bytes));
    }
    if (is_root) to += bytes;
  }
}

void GatherWhole(Collectives& ranks, int root, const ParameterStore& parameters, size_t i,
                 size_t width, std::span<const std::byte> own, std::span<const int64_t> part_bytes,
                 std::byte* to) {
  const TensorSplit& tensor = parameters.tensor();
  const engine::WeightSpec& spec = parameters.specs()[i];
  const bool is_root = ranks.rank() == root;
  std::vector<std::byte> part(is_root ? static_cast<size_t>(spec.n * spec.k) * width : 0);
  TensorPlace place = tensor.place;
  for (place.rank = 0; place.rank < place.size; ++place.rank) {
    GatherParts(ranks, root, own, part_bytes, part.data(), place.rank, place.size);
    if (is_root) PlacePart(tensor.weights[i], place, spec.n, spec.k, width, part.data(), to);
    if (tensor.weights[i].axis == WeightSplit::Axis::kWhole) return;  // all ranks have the same
  }
}

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
    GatherParts(ranks, 0, part.own, part.part_bytes, to);
  }
  return gathered;
}

void RestoreMoments(ParameterStore& parameters, const TensorFiles& files,
                    const std::string& source) {
  const TensorSplit& tensor = parameters.tensor();
  std::vector<std::byte> taken;
  for (const ParameterStore::MomentPart& part : parameters.MomentParts()) {
    const std::byte* from = FindIn(files, part, source);
    if (tensor.is_split()) {
      const engine::WeightSpec& spec = parameters.specs()[part.weight];
      const size_t width = engine::DTypeBytes(part.dtype);
      taken.resize(static_cast<size_t>(spec.n * spec.k) * width);
      TakePart(tensor.weights[part.weight], tensor.place, spec.n, spec.k, width, from,
               taken.data());
      from = taken.data();
    }
    const bool is_shared = part.part_bytes.size() > 1;
    const auto mine = part.part_bytes.begin() + (is_shared ? parameters.shard().rank : 0);
    from += std::accumulate(part.part_bytes.begin(), mine, int64_t{0});
    if (*mine > 0) std::memcpy(part.own.data(), from, static_cast<size_t>(*mine));
  }
}

void ScatterMoments(Collectives& ranks, ParameterStore& parameters, const TensorFiles* files,
                    const std::string& source) {
  for (const ParameterStore::MomentPart& part : parameters.MomentParts()) {
    const std::byte* from = files == nullptr ? nullptr : FindIn(*files, part, source);
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
