#include "training/data/array_record/highway_hash.h"

#include <array>
#include <cstring>

namespace tandem::training {
namespace {

constexpr size_t kLanes = 4;
constexpr size_t kPacket = 32;  // bytes
using Lanes = std::array<uint64_t, kLanes>;

constexpr Lanes kInit0 = {0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0, 0x13198a2e03707344,
                          0x243f6a8885a308d3};
constexpr Lanes kInit1 = {0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c, 0xbe5466cf34e90c6c,
                          0x452821e638d01377};
// "Riegeli/", "records\n", twice.
constexpr Lanes kKey = {0x2f696c6567656952, 0x0a7364726f636572, 0x2f696c6567656952,
                        0x0a7364726f636572};

uint64_t Swap32(uint64_t x) { return (x >> 32) | (x << 32); }

uint32_t Rotate(uint32_t x, uint32_t by) { return by == 0 ? x : (x << by) | (x >> (32 - by)); }

class Hash {
 public:
  Hash() {
    for (size_t i = 0; i < kLanes; ++i) {
      mul0_[i] = kInit0[i];
      mul1_[i] = kInit1[i];
      v0_[i] = kInit0[i] ^ kKey[i];
      v1_[i] = kInit1[i] ^ Swap32(kKey[i]);
    }
  }

  void Update(const std::byte* packet) {
    Lanes lanes;
    std::memcpy(lanes.data(), packet, kPacket);
    Update(lanes);
  }

  // The last bytes, fewer than a packet.
  void Remainder(std::span<const std::byte> bytes) {
    const auto n = static_cast<uint32_t>(bytes.size());
    const uint32_t n4 = n & ~3U;
    std::array<std::byte, kPacket> packet{};
    for (size_t i = 0; i < kLanes; ++i) {
      v0_[i] += (uint64_t{n} << 32) + n;
      const auto low = Rotate(static_cast<uint32_t>(v1_[i]), n);
      const auto high = Rotate(static_cast<uint32_t>(v1_[i] >> 32), n);
      v1_[i] = (uint64_t{high} << 32) | low;
    }
    std::memcpy(packet.data(), bytes.data(), n4);
    const uint32_t left = n & 3;
    if ((n & 16) != 0) {
      std::memcpy(packet.data() + 28, bytes.data() + n - 4, 4);
    } else if (left != 0) {
      packet[16] = bytes[n4];
      packet[17] = bytes[n4 + (left >> 1)];
      packet[18] = bytes[n - 1];
    }
    Update(packet.data());
  }

  uint64_t Finish() {
    for (int i = 0; i < 4; ++i) {
      Update(Lanes{Swap32(v0_[2]), Swap32(v0_[3]), Swap32(v0_[0]), Swap32(v0_[1])});
    }
    return v0_[0] + v1_[0] + mul0_[0] + mul1_[0];
  }

 private:
  void Update(const Lanes& lanes) {
    for (size_t i = 0; i < kLanes; ++i) {
      v1_[i] += mul0_[i] + lanes[i];
      mul0_[i] ^= (v1_[i] & 0xffffffff) * (v0_[i] >> 32);
      v0_[i] += mul1_[i];
      mul1_[i] ^= (v0_[i] & 0xffffffff) * (v1_[i] >> 32);
    }
    Merge(v1_[1], v1_[0], &v0_[1], &v0_[0]);
    Merge(v1_[3], v1_[2], &v0_[3], &v0_[2]);
    Merge(v0_[1], v0_[0], &v1_[1], &v1_[0]);
    Merge(v0_[3], v0_[2], &v1_[3], &v1_[2]);
  }

  // Adds the bytes of two lanes in another order.
  static void Merge(uint64_t v1, uint64_t v0, uint64_t* add1, uint64_t* add0) {
    *add0 += (((v0 & 0xff000000) | (v1 & 0xff00000000)) >> 24) |
             (((v0 & 0xff0000000000) | (v1 & 0xff000000000000)) >> 16) | (v0 & 0xff0000) |
             ((v0 & 0xff00) << 32) | ((v1 & 0xff00000000000000) >> 8) | (v0 << 56);
    *add1 += (((v1 & 0xff000000) | (v0 & 0xff00000000)) >> 24) | (v1 & 0xff0000) |
             ((v1 & 0xff0000000000) >> 16) | ((v1 & 0xff00) << 24) |
             ((v0 & 0xff000000000000) >> 8) | ((v1 & 0xff) << 48) | (v0 & 0xff00000000000000);
  }

  Lanes v0_{}, v1_{}, mul0_{}, mul1_{};
};

}  // namespace

uint64_t RiegeliHash(std::span<const std::byte> bytes) {
  Hash hash;
  for (; bytes.size() >= kPacket; bytes = bytes.subspan(kPacket)) hash.Update(bytes.data());
  if (!bytes.empty()) hash.Remainder(bytes);
  return hash.Finish();
}

}  // namespace tandem::training
