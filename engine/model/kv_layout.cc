#include "engine/model/kv_layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/base/check.h"

namespace tandem::engine {
namespace {

// Every table costs a look-up per block, and a sequence's spare block.
constexpr size_t kMaxTables = 8;
constexpr int64_t kTypicalWindows = 8;

int64_t LayerBytes(const KvCache::Layer& layer) { return layer.key_bytes + layer.value_bytes; }

using LayersByWindow = std::map<KvWindow, std::vector<size_t>>;

// A window that holds the longest text is none.
LayersByWindow ListWindows(std::span<const AttentionSpec> layers, int64_t max_model_len) {
  LayersByWindow by_window;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].n_kv_heads == 0) continue;
    const KvWindow window = WindowOf(layers[i]);
    by_window[window.tokens < max_model_len ? window : KvWindow{}].push_back(i);
  }
  return by_window;
}

// One table keeps what its layer with the farthest sight needs.
KvWindow CommonWindow(const LayersByWindow& by_window) {
  for (const auto& [window, layers] : by_window) {
    const bool covers_all = std::all_of(by_window.begin(), by_window.end(), [&](const auto& other) {
      return window.Covers(other.first);
    });
    if (covers_all) return window;
  }
  return {};
}

// Cuts each window's layers into tables of at most `table_bytes`. Nothing if a layer has more, or
// if there would be too many tables.
std::optional<KvCache::Shape> Cut(const KvCache::Shape& whole, const LayersByWindow& by_window,
                                  int64_t table_bytes) {
  KvCache::Shape cut = whole;
  cut.windows.clear();
  for (const auto& [window, layers] : by_window) {
    int64_t used = 0;
    for (const size_t i : layers) {
      const int64_t bytes = LayerBytes(whole.layers[i]);
      if (bytes > table_bytes) return std::nullopt;
      if (i == layers.front() || used + bytes > table_bytes) {
        if (cut.windows.size() == kMaxTables) return std::nullopt;
        cut.windows.push_back(window);
        used = 0;
      }
      used += bytes;
      cut.layers[i].table = cut.windows.size() - 1;
    }
  }
  return cut;
}

// Bytes of a typical sequence, per 16 tokens; only comparisons use it.
double Cost(const KvCache::Shape& shape, int64_t typical_length) {
  double positions = 0;
  for (const KvWindow& window : shape.windows) {
    const int64_t seen = window.keeps_all() ? typical_length : window.tokens;
    positions += static_cast<double>(std::min(seen, typical_length));
  }
  return positions * static_cast<double>(shape.block_bytes());
}

}  // namespace

KvWindow WindowOf(const AttentionSpec& layer) {
  if (layer.chunk > 0) return KvWindow::Chunk(layer.chunk);
  return layer.window > 0 ? KvWindow::Sliding(layer.window) : KvWindow{};
}

KvCache::Shape KvInOneTable(std::span<const AttentionSpec> layers, DType dtype, KvFormat format) {
  KvCache::Shape shape;
  shape.format = format;
  for (const AttentionSpec& kept : layers) {
    shape.layers.push_back(
        {.key_bytes = kept.n_kv_heads * KvHeadBlockBytes(dtype, kept.head_dim, format),
         .value_bytes = kept.n_kv_heads * KvHeadBlockBytes(dtype, kept.value_dim(), format)});
  }
  return shape;
}

KvCache::Shape LayOutKv(std::span<const AttentionSpec> layers, DType dtype, int64_t max_model_len,
                        KvFormat format) {
  TANDEM_CHECK(max_model_len > 0);
  KvCache::Shape best = KvInOneTable(layers, dtype, format);
  const LayersByWindow by_window = ListWindows(layers, max_model_len);
  if (by_window.empty()) return best;
  int64_t largest = 0;
  for (const auto& [window, of_window] : by_window) largest = std::max(largest, window.tokens);
  if (largest == 0) return best;
  best.windows = {CommonWindow(by_window)};
  if (by_window.size() == 1) return best;

  const int64_t typical_length =
      std::min(max_model_len, CheckedMul(kTypicalWindows, largest, "window"));
  std::set<int64_t> candidates;
  for (const auto& [window, of_window] : by_window) {
    int64_t bytes = 0;
    for (const size_t i : of_window) candidates.insert(bytes += LayerBytes(best.layers[i]));
  }
  const KvCache::Shape whole = best;
  double least = Cost(best, typical_length);
  for (const int64_t table_bytes : candidates) {
    std::optional<KvCache::Shape> cut = Cut(whole, by_window, table_bytes);
    if (!cut) continue;
    const double cost = Cost(*cut, typical_length);
    const bool has_fewer = cost == least && cut->windows.size() < best.windows.size();
    if (cost > least || (cost == least && !has_fewer)) continue;
    least = cost;
    best = *std::move(cut);
  }
  return best;
}

}  // namespace tandem::engine
