#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem::convert {

// Zstandard frames (RFC 8878). TensorStore's do not say the size of what is in them; ours do, and
// have a checksum of it, which every reader of such frames looks at.
// Those that decode throw kDataLoss naming `what`.

// Decodes one value after the other in the same memory. One thread.
class ZstdDecoder {
 public:
  ZstdDecoder();
  ~ZstdDecoder();
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  // Fills `out` exactly.
  void Decode(std::span<const std::byte> bytes, std::span<std::byte> out, const std::string& what);
  // The same in pieces of `room`, the last one perhaps less, each there during the call: what is
  // done with a piece finds it in the cache, and a large value takes no memory. `size` is what must
  // come out. Throws after some pieces where the fault lies behind them.
  using TakePiece = std::function<void(int64_t offset, std::span<const std::byte> piece)>;
  void DecodeInPieces(std::span<const std::byte> bytes, size_t size, std::span<std::byte> room,
                      const std::string& what, const TakePiece& take);

 private:
  struct Context;
  void DecodeAtOnce(std::span<const std::byte> bytes, size_t size, const std::string& what,
                    const TakePiece& take);

  std::unique_ptr<Context> context_;
};

// Of unknown size, at most `most`: memory grows with what comes out, not with what is claimed.
std::vector<std::byte> DecodeZstdUpTo(std::span<const std::byte> bytes, size_t most,
                                      const std::string& what);

// One frame at level 1: weights hardly become smaller at others.
std::vector<std::byte> EncodeZstd(std::span<const std::byte> bytes);

}  // namespace tandem::convert
