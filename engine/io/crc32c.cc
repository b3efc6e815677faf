#include "engine/io/crc32c.h"

#include <array>
#include <cstring>

namespace tandem::engine {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // 0x1EDC6F41, bits reversed

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: contribution of byte b when k more bytes follow.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][b] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (uint32_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

// The SSE4.2 instruction: three cycles per eight bytes, about 6 GB/s.
__attribute__((target("sse4.2"))) uint32_t ByInstruction(uint32_t crc,
                                                         std::span<const std::byte> bytes) {
  uint64_t state = ~crc;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    state = __builtin_ia32_crc32di(state, word);
  }
  auto narrow = static_cast<uint32_t>(state);
  for (; left > 0; ++at, --left) {
    narrow = __builtin_ia32_crc32qi(narrow, static_cast<unsigned char>(*at));
  }
  return ~narrow;
}

// Slicing-by-8 (Kounavis and Berry): about 1.5 GB/s.
uint32_t ByTables(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word = 0;
    std::memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
  }
  for (; left > 0; ++at, --left) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*at)) & 0xFF];
  }
  return ~crc;
}

}  // namespace

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? ByInstruction(crc, bytes) : ByTables(crc, bytes);
}

uint32_t PortableCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  return ByTables(crc, bytes);
}

}  // namespace tandem::engine
