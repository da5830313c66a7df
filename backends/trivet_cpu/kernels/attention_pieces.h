// Attention piece by piece, and the merging of the pieces' results. Included once for each kind of cache: a file
// a kind, so that they compile side by side.
#pragma once

#include "attention_amx.h"
#include "attention_tile.h"

namespace trivet {

// Rows of tile `i` of `count` rows: as even as can be.
inline int tile_start(int count, int i) {
  const int tiles = (count + TILE_ROWS - 1) / TILE_ROWS;
  return count * i / tiles;
}

// The queries side by side, tile by tile, as `Tile` wants them.
template <CacheKind K>
void write_queries(const Queries& q, int head_dim, int32_t* out) {
  constexpr float LOG2_E = 1.44269504f;
  const int words = K == CACHE_F32 ? head_dim : head_dim / 2;
  for (int row = 0, tile = 0; row < q.count; tile++)
    for (const int base = row, stop = tile_start(q.count, tile + 1); row < stop; row++) {
      int32_t* to = out + (size_t)tile * words * TILE_ROWS + row - base;
      if constexpr (K == CACHE_F32) {
        for (int d = 0; d < words; d++) memcpy(to + d * TILE_ROWS, q.rows[row] + d, 4);
      } else {
        alignas(64) BFloat pairs[LANES];
        for (int d = 0; d < words; d++) {
          if (d % (LANES / 2) == 0) store_bfloats(pairs, load(q.rows[row] + 2 * d) * broadcast(LOG2_E));
          memcpy(to + d * TILE_ROWS, pairs + 2 * d % LANES, 4);
        }
      }
    }
}

inline int from_of(const Queries& q, int start) { return std::max(start, q.first[0]); }

inline bool is_seen(const Queries& q, int row, int start, int stop) { return q.first[row] < stop && q.last[row] > start; }

// sum += partial, with the larger of both peaks.
template <CacheKind K>
void merge_into(float* sum, const float* partial, int head_dim) {
  const float peak = std::max(sum[0], partial[0]);
  const Floats old_share = share_of<K>(broadcast(sum[0] - peak));
  const Floats new_share = share_of<K>(broadcast(partial[0] - peak));
  float factors[2][LANES];
  store(factors[0], old_share);
  store(factors[1], new_share);
  sum[0] = peak;
  sum[1] = sum[1] * factors[0][0] + partial[1] * factors[1][0];
  for (int d = PARTIAL_HEAD; d < PARTIAL_HEAD + head_dim; d += LANES)
    store(sum + d, fma(load(partial + d), new_share, load(sum + d) * old_share));
}

template <CacheKind K>
void attend_with(const Cache& cache, int head, const int32_t* table, const Queries& q, Pieces pieces,
                 float* partials, size_t piece_stride, AttentionScratch& scratch) {
#if defined(__AMX_BF16__)
  if constexpr (K != CACHE_F32)
    return TiledAttention<K>(cache, head, table, q, scratch).run(pieces, partials, piece_stride);
#endif
  const int dim = cache.head_dim, size = partial_size(dim), end = q.last[q.count - 1];
  const int words = K == CACHE_F32 ? dim : dim / 2;
  write_queries<K>(q, dim, scratch.queries);
  for (int piece = pieces.first; piece < pieces.last; piece++) {
    const int start = piece * PIECE_KEYS, stop = std::min(start + PIECE_KEYS, end);
    const View view = view_of(cache, head, table, start, stop, end);
    Done done{(from_of(q, start) - start) / LANES, (from_of(q, start) - start) / LANES};
    for (int row = 0, number = 0; row < q.count; number++) {
      const int next = tile_start(q.count, number + 1), count = next - row;
      const int from = std::max(start, q.first[row]), to = std::min(stop, q.last[next - 1]);
      if (from < to) {
        float* out[TILE_ROWS];
        for (int i = 0; i < count; i++) {
          if (partials)
            out[i] = partials + piece * piece_stride + (size_t)(row + i) * size;
          else if (q.first[row + i] >= start)  // its first piece
            out[i] = scratch.sums + (row + i) * size;
          else
            out[i] = scratch.partials + i * size;
        }
        const Tile<K> tile{view,  scratch.queries + (size_t)number * words * TILE_ROWS, scratch, dim, start,
                           (from - start) / LANES, (to - start + LANES - 1) / LANES, done};
        attend_rows(tile, count, to - start, q.first + row, q.last + row, out);
        if (!partials)
          for (int i = 0; i < count; i++)
            if (q.first[row + i] < start && is_seen(q, row + i, start, stop))
              merge_into<K>(scratch.sums + (row + i) * size, out[i], dim);
      }
      row = next;
    }
  }
  if (!partials)
    for (int row = 0; row < q.count; row++) finish(scratch.sums + row * size, dim, q.out[row]);
}

template <CacheKind K>
void merge_with(int dim, const Queries& q, const float* partials, size_t piece_stride, float* sum) {
  const int size = partial_size(dim);
  for (int row = 0; row < q.count; row++) {
    const int first = q.first[row] / PIECE_KEYS;
    const float* partial = partials + first * piece_stride + (size_t)row * size;
    std::copy_n(partial, size, sum);
    for (int piece = first + 1; piece * PIECE_KEYS < q.last[row]; piece++)
      merge_into<K>(sum, partial + (piece - first) * piece_stride, dim);
    finish(sum, dim, q.out[row]);
  }
}

}  // namespace trivet
