#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tandem {

// An integer id. Ids of different kinds do not convert to each other.
template <class Tag, class Int = uint32_t>
struct Id {
  Int value{};
  auto operator<=>(const Id&) const = default;
};

// Tokens stay plain integers, because big arrays hold them and they index tables.
using TokenId = int32_t;
using BlockId = Id<struct BlockTag>;
using RequestId = Id<struct RequestTag, uint64_t>;

}  // namespace tandem

template <class Tag, class Int>
struct std::hash<tandem::Id<Tag, Int>> {
  size_t operator()(const tandem::Id<Tag, Int>& id) const { return std::hash<Int>()(id.value); }
};
