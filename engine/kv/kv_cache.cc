#include "engine/kv/kv_cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

const char* const kWhat = "KV cache size in bytes";

size_t CacheBytes(const KvCache::Shape& shape) {
  TANDEM_CHECK(shape.n_blocks >= 0);
  return static_cast<size_t>(CheckedMul(shape.block_bytes(), shape.n_blocks, kWhat));
}

int64_t LargestItem(const KvCache::Shape& shape, size_t table) {
  int64_t most = 0;
  for (const KvCache::Layer& layer : shape.layers) {
    if (layer.table == table) most = std::max({most, layer.key_bytes, layer.value_bytes});
  }
  return most;
}

}  // namespace

int64_t KvCache::Shape::block_bytes() const {
  int64_t bytes = 0;
  for (const int64_t area : LayOut(*this).areas) bytes = CheckedAdd(bytes, area, kWhat);
  return bytes;
}

// First fit, the table with the largest items first. A small item of another table may share the
// area of a large one.
KvCache::Layout KvCache::LayOut(const Shape& shape) {
  std::vector<size_t> tables(shape.windows.size());
  std::iota(tables.begin(), tables.end(), size_t{0});
  std::stable_sort(tables.begin(), tables.end(), [&](size_t a, size_t b) {
    return LargestItem(shape, a) > LargestItem(shape, b);
  });
  Layout layout;
  layout.keys.resize(shape.layers.size());
  layout.values.resize(shape.layers.size());
  std::vector<int64_t> used;
  const auto put = [&](int64_t bytes) -> Place {
    TANDEM_CHECK(bytes >= 0);
    if (bytes == 0) return {};
    size_t area = 0;
    while (area < used.size() && layout.areas[area] - used[area] < bytes) ++area;
    if (area == used.size()) {
      layout.areas.push_back(bytes);
      used.push_back(0);
    }
    const Place place = {area, used[area]};
    used[area] += bytes;
    return place;
  };
  for (const size_t table : tables) {
    used.assign(layout.areas.size(), 0);
    for (size_t i = 0; i < shape.layers.size(); ++i) {
      const Layer& layer = shape.layers[i];
      TANDEM_CHECK(layer.table < shape.windows.size());
      if (layer.table != table) continue;
      layout.keys[i] = put(layer.key_bytes);
      layout.values[i] = put(layer.value_bytes);
    }
  }
  return layout;
}

KvCache::KvCache(const Shape& shape)
    : shape_(shape), layout_(LayOut(shape)), bytes_(CacheBytes(shape)) {
  int64_t begin = 0;
  for (const int64_t area : layout_.areas) {
    begins_.push_back(begin);
    begin += area;
  }
}

// Layers without bytes have no place of their own.
std::byte* KvCache::At(const Place& place) {
  if (place.area >= begins_.size()) return bytes_.data();
  return bytes_.data() + begins_[place.area] * shape_.n_blocks + place.offset;
}

std::byte* KvCache::keys(int64_t layer) { return At(layout_.keys.at(static_cast<size_t>(layer))); }

std::byte* KvCache::values(int64_t layer) {
  return At(layout_.values.at(static_cast<size_t>(layer)));
}

int64_t KvCache::key_stride(int64_t layer) const {
  return layout_.areas.at(layout_.keys.at(static_cast<size_t>(layer)).area);
}

int64_t KvCache::value_stride(int64_t layer) const {
  return layout_.areas.at(layout_.values.at(static_cast<size_t>(layer)).area);
}

int64_t KvCache::bytes() const { return static_cast<int64_t>(bytes_.size()); }

// Whole pages only: the first and the last may belong to other blocks, too.
void KvCache::Discard(int64_t first, int64_t n) {
  TANDEM_CHECK(first >= 0 && n >= 0 && first + n <= shape_.n_blocks);
  const auto page = static_cast<uintptr_t>(::getpagesize());
  for (size_t area = 0; area < layout_.areas.size(); ++area) {
    std::byte* const base = At({area, 0});
    const auto begin = reinterpret_cast<uintptr_t>(base + first * layout_.areas[area]);
    const auto end = reinterpret_cast<uintptr_t>(base + (first + n) * layout_.areas[area]);
    const uintptr_t first_page = (begin + page - 1) / page * page;
    const uintptr_t last_page = end / page * page;
    if (first_page >= last_page) continue;
    // Fails for locked pages only, which then stay.
    ::madvise(reinterpret_cast<void*>(first_page), last_page - first_page, MADV_DONTNEED);
  }
}

void KvCache::CopyBlock(BlockId from, BlockId to) {
  TANDEM_CHECK(from.value < shape_.n_blocks && to.value < shape_.n_blocks && from != to);
  for (size_t area = 0; area < layout_.areas.size(); ++area) {
    const int64_t bytes = layout_.areas[area];
    std::byte* const base = At({area, 0});
    std::memcpy(base + to.value * bytes, base + from.value * bytes, static_cast<size_t>(bytes));
  }
}

void KvCache::ReadBlock(BlockId from, std::span<std::byte> to) {
  TANDEM_CHECK(from.value < shape_.n_blocks &&
               static_cast<int64_t>(to.size()) == shape_.block_bytes());
  for (size_t area = 0; area < layout_.areas.size(); ++area) {
    const int64_t bytes = layout_.areas[area];
    std::memcpy(to.data() + begins_[area], At({area, 0}) + from.value * bytes,
                static_cast<size_t>(bytes));
  }
}

void KvCache::WriteBlock(BlockId to, std::span<const std::byte> from) {
  TANDEM_CHECK(to.value < shape_.n_blocks &&
               static_cast<int64_t>(from.size()) == shape_.block_bytes());
  for (size_t area = 0; area < layout_.areas.size(); ++area) {
    const int64_t bytes = layout_.areas[area];
    std::memcpy(At({area, 0}) + to.value * bytes, from.data() + begins_[area],
                static_cast<size_t>(bytes));
  }
}

}  // namespace tandem::engine
