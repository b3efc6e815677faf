#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tandem::convert {

// Zstandard frames (RFC 8878). TensorStore's frames omit the content size; ours have it, with a
// checksum that readers verify. Decoding throws kDataLoss naming `what`.

// Decodes values one after the other and reuses its memory. One thread.
class ZstdDecoder {
 public:
  ZstdDecoder();
  ~ZstdDecoder();
  ZstdDecoder(const ZstdDecoder&) = delete;
  ZstdDecoder& operator=(const ZstdDecoder&) = delete;

  // Fills `out` exactly.
  void Decode(std::span<const std::byte> bytes, std::span<std::byte> out, const std::string& what);
  // Decodes `size` bytes in pieces of room.size(), the last perhaps shorter; a piece is valid
  // during the call of `take`. Pieces stay in the cache, and a large value needs no large buffer.
  // May throw after some pieces, when it reaches damaged data.
  using TakePiece = std::function<void(int64_t offset, std::span<const std::byte> piece)>;
  void DecodeInPieces(std::span<const std::byte> bytes, size_t size, std::span<std::byte> room,
                      const std::string& what, const TakePiece& take);

 private:
  struct Context;
  void DecodeAtOnce(std::span<const std::byte> bytes, size_t size, const std::string& what,
                    const TakePiece& take);

  std::unique_ptr<Context> context_;
};

// Decodes at most `most` bytes of unknown size; memory grows with the output, not with the claimed
// size.
std::vector<std::byte> DecodeZstdUpTo(std::span<const std::byte> bytes, size_t most,
                                      const std::string& what);

// Writes one frame at level 1; higher levels barely shrink weights.
std::vector<std::byte> EncodeZstd(std::span<const std::byte> bytes);

}  // namespace tandem::convert
