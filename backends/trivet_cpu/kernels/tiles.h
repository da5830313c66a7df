// AMX: eight registers of 16 rows x 64 bytes ("tiles"), and products of them.
//
// A thread configures its tiles before it works with them and releases them afterwards, so that a switch to
// another thread has no 8 KiB to save. The process has asked the kernel for leave (tile_permission.py).
// GCC's own intrinsics say nothing of the memory that they read and write, so that stores could be moved behind
// the load of a tile.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace trivet {

constexpr int TILE_LINES = 16;       // rows of a tile
constexpr int TILE_LINE_BYTES = 64;  // 16 floats or 32 bfloats
constexpr int TILE_PAIRS = 32;       // bfloats of a line: the depth of one product

#if defined(__AMX_BF16__)
constexpr bool HAS_TILES = true;

// Shapes of the tiles, at first all in full size; to load them clears the tiles.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_line = 0, reserved[14] = {};
  uint16_t line_bytes[16];
  uint8_t lines[16];

  TileShapes() : line_bytes{}, lines{} {
    for (int tile = 0; tile < 8; tile++) {
      line_bytes[tile] = TILE_LINE_BYTES;
      lines[tile] = TILE_LINES;
    }
  }
  void load() const { asm volatile("ldtilecfg %0" ::"m"(*this)); }
};

// While one lives, its thread has all eight tiles in full size.
class TilesInUse {
 public:
  TilesInUse() { TileShapes().load(); }
  ~TilesInUse() { asm volatile("tilerelease"); }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;
};

template <int tile>
TRIVET_INLINE void clear_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}
// Lines stand `stride` bytes apart.
template <int tile>
TRIVET_INLINE void load_tile(const void* lines, ptrdiff_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(lines), "r"(stride), "i"(tile) : "memory");
}
// The same for lines that are not needed again soon: they do not drive others out of the first-level cache (256
// rows of activations that pass by 36 KiB of weights: 305 cycles a tile instead of 390, Emerald Rapids).
template <int tile>
TRIVET_INLINE void stream_tile(const void* lines, ptrdiff_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(lines), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
TRIVET_INLINE void store_tile(void* lines, ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(lines), "r"(stride), "i"(tile) : "memory");
}
// sum [16][16 floats] += a [16][32 bfloats] times b [16 pairs of rows][16 columns][2 bfloats]: 16,384 FLOPs in
// 16 cycles. Subnormal numbers count as 0, NaN and Inf come through.
template <int sum, int a, int b>
TRIVET_INLINE void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sum), "i"(a), "i"(b));
}

#else
constexpr bool HAS_TILES = false;

class TilesInUse {
 public:
  TilesInUse() {}  // not trivial: a variable of it is not unused
};
#endif

}  // namespace trivet
