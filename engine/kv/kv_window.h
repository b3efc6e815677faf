#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>

namespace tandem::engine {

// The earlier positions that a layer's query sees, its own included. They are adjacent, and their
// first one never moves back, so what a query does not see no later one sees.
struct KvWindow {
  enum class Kind {
    kAll,      // every position
    kSliding,  // the last `tokens` positions
    kChunk,    // those of its own chunk; chunks of `tokens` positions begin at multiples of it
  };
  Kind kind = Kind::kAll;
  int64_t tokens = 0;  // 0 for kAll, else positive

  static constexpr KvWindow Sliding(int64_t tokens) { return {Kind::kSliding, tokens}; }
  static constexpr KvWindow Chunk(int64_t tokens) { return {Kind::kChunk, tokens}; }

  bool keeps_all() const { return kind == Kind::kAll; }

  // The first position that a query at `position` sees.
  int64_t FirstVisible(int64_t position) const {
    switch (kind) {
      case Kind::kAll:
        return 0;
      case Kind::kSliding:
        return std::max<int64_t>(0, position - tokens + 1);
      case Kind::kChunk:
        return position / tokens * tokens;
    }
    return 0;
  }

  // Whether every query sees at least what it sees through `other`.
  bool Covers(const KvWindow& other) const {
    // A query always sees itself.
    if (keeps_all() || *this == other || other.tokens == 1) return true;
    if (other.keeps_all()) return false;
    // The last position of a chunk sees as much as a window of its length.
    if (kind == Kind::kSliding) return tokens >= other.tokens;
    return other.kind == Kind::kChunk && tokens % other.tokens == 0;
  }

  // kAll comes first.
  friend auto operator<=>(const KvWindow&, const KvWindow&) = default;
};

}  // namespace tandem::engine
