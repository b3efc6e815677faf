#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace tandem {

// A small integer that names a thing. Two kinds of id do not mix.
template <class Tag, class Int = uint32_t>
struct Id {
  Int value{};
  auto operator<=>(const Id&) const = default;
};

// Tokens live in big arrays and index tables, so they stay plain integers.
using TokenId = int32_t;
using BlockId = Id<struct BlockTag>;
using RequestId = Id<struct RequestTag, uint64_t>;

}  // namespace tandem

template <class Tag, class Int>
struct std::hash<tandem::Id<Tag, Int>> {
  size_t operator()(const tandem::Id<Tag, Int>& id) const { return std::hash<Int>()(id.value); }
};
