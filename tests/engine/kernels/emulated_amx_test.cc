// The block kernels of AMX over an emulation of its tile instructions, for CPUs without it.
// BlockMatMulTest runs them as one more table.
#include "tests/engine/kernels/emulated_amx.h"

#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "engine/kernels/cpu_features.h"
#include "engine/kernels/peak_loop.h"

// False alarms of g++ 12 in its intrinsics headers.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#if defined(__x86_64__)
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbsud
#undef _tile_release

namespace tandem::engine::emulated_amx {
namespace {

// The state and the instructions as in Intel's Software Developer's Manual, volume 2. What faults
// there throws here.
struct Tile {
  int64_t rows = 0;
  int64_t row_bytes = 0;
  uint8_t bytes[16][64] = {};
};
struct Tiles {
  bool configured = false;
  Tile tile[8];
};
thread_local Tiles tiles;

Tile& TileAt(int index) {
  if (!tiles.configured) throw std::logic_error("tiles are not configured");
  if (tiles.tile[index].rows == 0) throw std::logic_error("the tile has no rows");
  return tiles.tile[index];
}
void Configure(const void* config) {
  uint8_t bytes[64];
  std::memcpy(bytes, config, sizeof(bytes));
  if (bytes[0] != 1 || bytes[1] != 0) throw std::logic_error("not palette 1");
  tiles = {};
  tiles.configured = true;
  for (int i = 0; i < 8; ++i) {
    uint16_t row_bytes = 0;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof(row_bytes));
    tiles.tile[i].rows = bytes[48 + i];
    tiles.tile[i].row_bytes = row_bytes;
    if (tiles.tile[i].rows > 16 || row_bytes > 64) throw std::logic_error("a tile is too large");
    if ((tiles.tile[i].rows == 0) != (row_bytes == 0)) throw std::logic_error("half a tile");
  }
}
void _tile_loadconfig(const void* config) { Configure(config); }
void _tile_release() { tiles = {}; }
void _tile_zero(int index) {
  Tile& tile = TileAt(index);
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
}
void _tile_loadd(int index, const void* from, int64_t stride) {
  Tile& tile = TileAt(index);
  std::memset(tile.bytes, 0, sizeof(tile.bytes));
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.bytes[r], static_cast<const char*>(from) + r * stride,
                static_cast<size_t>(tile.row_bytes));
  }
}
void _tile_stored(int index, void* to, int64_t stride) {
  const Tile& tile = TileAt(index);
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<char*>(to) + r * stride, tile.bytes[r],
                static_cast<size_t>(tile.row_bytes));
  }
}
// Signed bytes of `a` times unsigned bytes of `b`, four by four, added to 32-bit sums.
void _tile_dpbsud(int sums, int signed_tile, int unsigned_tile) {
  Tile& c = TileAt(sums);
  const Tile& a = TileAt(signed_tile);
  const Tile& b = TileAt(unsigned_tile);
  if (a.rows != c.rows || b.row_bytes != c.row_bytes || a.row_bytes != b.rows * 4) {
    throw std::logic_error("the shapes of the tiles do not fit");
  }
  for (int64_t m = 0; m < c.rows; ++m) {
    for (int64_t n = 0; n < c.row_bytes / 4; ++n) {
      int32_t sum = 0;
      std::memcpy(&sum, c.bytes[m] + 4 * n, sizeof(sum));
      for (int64_t k = 0; k < a.row_bytes; ++k) {
        sum += static_cast<int8_t>(a.bytes[m][k]) * b.bytes[k / 4][4 * n + k % 4];
      }
      std::memcpy(c.bytes[m] + 4 * n, &sum, sizeof(sum));
    }
  }
}

}  // namespace
}  // namespace tandem::engine::emulated_amx

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma")
namespace tandem::engine::emulated_amx {
namespace {
// clang-format off
#include "engine/kernels/avx512/vec.inc"
#include "engine/kernels/avx512/bytes_dot.inc"
#include "engine/kernels/block_matmul.inc"
#include "engine/kernels/amx/tiles.inc"
// clang-format on
constexpr BlockKernels kBlocks = MakeTileKernels();
}  // namespace
}  // namespace tandem::engine::emulated_amx
#pragma GCC pop_options
#endif

namespace tandem::engine {

const KernelTable* EmulatedAmx() {
#if defined(__x86_64__)
  static const KernelTable table = [] {
    KernelTable emulated = *RunnableKernelTables().back();
    emulated.key = "emulated_amx";
    emulated.blocks = &emulated_amx::kBlocks;
    return emulated;
  }();
  return DetectCpuFeatures().avx512_vnni ? &table : nullptr;
#else
  return nullptr;
#endif
}

namespace {

#if defined(__x86_64__)
// One number in each operand, so that a wrong order of bytes or a wrong sign shows.
TEST(EmulatedAmx, MultipliesSignedByUnsignedBytesInGroupsOfFour) {
  using namespace emulated_amx;
  ConfigureTiles(3);
  int8_t x[3 * 32] = {};
  uint8_t w[8 * 64] = {};
  x[2 * 32 + 13] = -127;
  w[3 * 64 + 5 * 4 + 1] = 255;  // k 13 of column 5
  int32_t out[4 * kTileSums] = {};
  MultiplyTiles(x, 32, false, w, w, out);
  _tile_release();
  for (int i = 0; i < 3 * 16; ++i) EXPECT_EQ(out[i], i == 2 * 16 + 5 ? -127 * 255 : 0) << i;
}

TEST(EmulatedAmx, FaultsWithoutAConfigurationAndForShapesThatDoNotFit) {
  using namespace emulated_amx;
  EXPECT_THROW(_tile_zero(0), std::logic_error);
  ConfigureTiles(20);
  EXPECT_THROW(_tile_dpbsud(0, 6, 4), std::logic_error);
  _tile_release();
}

// The peak bounds every product, so it is that of the tiles where products use them.
TEST(EmulatedAmx, ThePeakOfBytesIsThatOfTheTiles) {
  KernelTable table = *RunnableKernelTables().back();
  table.isa = "avx512";
  const auto operations = [&](std::string_view key, PeakKind kind) {
    table.key = key;
    return FindPeakLoop(table, kind).operations;
  };
  EXPECT_EQ(operations("avx512+vnni+amx", PeakKind::kBytes),
            operations("avx512+vnni", PeakKind::kBytes) * 256);
  EXPECT_EQ(operations("avx512+vnni+amx", PeakKind::kF32),
            operations("avx512+vnni", PeakKind::kF32));
}
#endif

}  // namespace
}  // namespace tandem::engine
