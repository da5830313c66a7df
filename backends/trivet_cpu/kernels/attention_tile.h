// One tile of attention: a few query rows over one piece of the keys, in registers.
//
// Reference: models/torch_attention.py. Tests: test_native_attention.py, tests/contract, rules 2 to 4 and chunks.
#pragma once

#include <algorithm>

#include "attention.h"

namespace trivet {

constexpr float HIDDEN = -1e30f;  // finite: HIDDEN - HIDDEN must not be NaN
// A tile is TILE_ROWS query rows times TILE_VECTORS vectors of keys, or of the head; its accumulators stay in
// registers: AVX-512 24 of 32, AVX2 12 of 16 (two each), others 12 of 16 or 32 (four each).
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 6, TILE_VECTORS = 4;
#elif defined(__AVX2__)
constexpr int TILE_ROWS = 3, TILE_VECTORS = 2;
#else
constexpr int TILE_ROWS = 3, TILE_VECTORS = 1;
#endif
constexpr int AHEAD = 4;  // groups: what is read so much later is fetched from memory
static_assert(UNIT_QUERIES % TILE_ROWS == 0);

inline void finish(const float* sum, int head_dim, float* out) {
  const Floats factor = broadcast(1.0f / sum[1]);
  for (int d = 0; d < head_dim; d += LANES) store(out + d, load(sum + PARTIAL_HEAD + d) * factor);
}

// Where the groups of a piece stand, and of the piece that comes next.
struct View {
  const uint8_t* groups[2 * PIECE_GROUPS];
  size_t part_bytes;

  const uint8_t* keys(int group) const { return groups[group]; }
  const uint8_t* values(int group) const { return groups[group] + part_bytes; }
};

inline View view_of(const Cache& cache, int head, const int32_t* table, int start, int stop, int end) {
  View view;
  view.part_bytes = cache.part_bytes();
  const int num_groups = (std::min(stop + PIECE_KEYS, end) - start + LANES - 1) / LANES;
  for (int i = 0; i < 2 * PIECE_GROUPS; i++) {
    const int token = start + std::min(i, num_groups - 1) * LANES;  // beyond the end: harmless to fetch
    view.groups[i] = cache.group(table[token / cache.block_size], head, token % cache.block_size);
  }
  return view;
}

// Groups of the piece below these have been read by a tile, so that they are in the cache, and unpacked.
struct Done {
  int keys, values;
};

// What of a tile and a piece the inner loops need.
template <CacheKind K>
struct Tile {
  const View& view;
  const int32_t* queries;  // [head_dim / 2][TILE_ROWS] pairs, f32: [head_dim][TILE_ROWS]
  AttentionScratch& scratch;
  int head_dim;
  int start;     // first key of the piece
  int from, to;  // groups [from, to) of the piece
  Done& done;

  const void* keys(int group) const {
    if constexpr (K == CACHE_INT8) return scratch.unpacked + (size_t)group * LANES * head_dim;
    return view.keys(group);
  }
  const void* values(int group) const {
    if constexpr (K == CACHE_INT8)
      return scratch.unpacked + (size_t)(PIECE_GROUPS + group) * LANES * head_dim;
    return view.values(group);
  }
  // What is read AHEAD groups after a group: the keys are followed by the values, and those by the next
  // piece's keys.
  const uint8_t* after_keys(int group) const {
    return group + AHEAD < to ? view.keys(group + AHEAD) : view.values(from + group + AHEAD - to);
  }
  const uint8_t* after_values(int group) const {
    return group + AHEAD < to ? view.values(group + AHEAD) : view.keys(PIECE_GROUPS + group + AHEAD - to);
  }
  // Scales of the keys of a group, or of its values.
  Floats scales(int group, int part) const {
    const BFloat* scales = (const BFloat*)(view.keys(group) + 2 * view.part_bytes) + part * LANES;
    return load_bfloats(scales);
  }
};

// Scores of W groups of keys from `group` on, for N rows: W * head_dim * 16 numbers read, 32 * head_dim FLOPs
// a row and group.
template <CacheKind K, int N, int W>
TRIVET_INLINE void score(const Tile<K>& tile, int group, Floats (&scores)[N][W]) {
#pragma GCC unroll 6
  for (int i = 0; i < N; i++)
#pragma GCC unroll 4
    for (int w = 0; w < W; w++) scores[i][w] = broadcast(0);
  if constexpr (K == CACHE_F32) {
    const float* keys[W];
    const uint8_t* ahead[W];
    for (int w = 0; w < W; w++) {
      keys[w] = (const float*)tile.keys(group + w);
      ahead[w] = tile.after_keys(group + w);
    }
    for (int d = 0; d < tile.head_dim; d++) {
      Floats lanes[W];
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) {
        lanes[w] = load(keys[w] + d * LANES);
        prefetch(ahead[w] + d * 64);
      }
#pragma GCC unroll 6
      for (int i = 0; i < N; i++) {
        const Floats number = broadcast(((const float*)tile.queries)[d * TILE_ROWS + i]);
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) scores[i][w] = fma(lanes[w], number, scores[i][w]);
      }
    }
  } else {
    const uint8_t* keys[W];
    const uint8_t* ahead[W];
    for (int w = 0; w < W; w++) {
      keys[w] = (const uint8_t*)tile.keys(group + w);
      ahead[w] = tile.after_keys(group + w);
    }
    for (int d = 0; d < tile.head_dim / 2; d++) {
      Ints pairs[W];
#pragma GCC unroll 4
      for (int w = 0; w < W; w++) {
        pairs[w] = in_register(load_ints(keys[w] + d * 64));
        if constexpr (K != CACHE_INT8) prefetch(ahead[w] + d * 64);
      }
#pragma GCC unroll 6
      for (int i = 0; i < N; i++) {
        const int32_t pair = tile.queries[d * TILE_ROWS + i];
#pragma GCC unroll 4
        for (int w = 0; w < W; w++) scores[i][w] = dot_pairs(scores[i][w], pairs[w], pair);
      }
    }
  }
}

// Scores of W groups into the scratch, what a row does not see hidden.
template <CacheKind K, int N, int W>
void score_groups(const Tile<K>& tile, int group, const int* first, const int* last, Floats (&peaks)[N]) {
  if constexpr (K == CACHE_INT8)
    for (; tile.done.keys < group + W; tile.done.keys++)
      unpack_part((const int8_t*)tile.view.keys(tile.done.keys), tile.head_dim,
                  (BFloat*)tile.keys(tile.done.keys), tile.after_keys(tile.done.keys));
  Floats scores[N][W];
  score<K, N, W>(tile, group, scores);
  const int token = tile.start + group * LANES;
#pragma GCC unroll 4
  for (int w = 0; w < W; w++) {
    Floats scale;
    if constexpr (K == CACHE_INT8) scale = tile.scales(group + w, 0);
#pragma GCC unroll 6
    for (int i = 0; i < N; i++) {
      Floats lanes = scores[i][w];
      if constexpr (K == CACHE_INT8) lanes = lanes * scale;
      const int key = token + w * LANES;
      if (key < first[i] || key + LANES > last[i]) {
        const Ints keys = lane_numbers() + broadcast_int(key);
        const Ints seen = less(broadcast_int(first[i] - 1), keys) & less(keys, broadcast_int(last[i]));
        lanes = select(seen, lanes, broadcast(HIDDEN));
      }
      peaks[i] = maximum(lanes, peaks[i]);  // a NaN is no peak; it reaches the sum by its share
      store(tile.scratch.scores[i] + (group + w) * LANES, lanes);
    }
  }
}

template <CacheKind K>
TRIVET_INLINE Floats share_of(const Floats& difference) {
  if constexpr (K == CACHE_F32) return exponential(difference);
  return power_of_two<4>(difference);  // the queries were multiplied with log2 e
}

// Shares of groups [from, to) take the place of their scores; returns their sum.
template <CacheKind K>
float write_shares(const Tile<K>& tile, float* row, float peak, int from, int to, int stop) {
  Floats total = broadcast(0);
  for (int group = from; group < to; group++) {
    const Floats share = share_of<K>(load(row + group * LANES) - broadcast(peak));
    total = total + share;
    if constexpr (K == CACHE_F32) {
      store(row + group * LANES, share);
    } else if constexpr (K == CACHE_BF16) {
      store_bfloats((BFloat*)row + group * LANES, share);
    } else {
      const int token = tile.start + group * LANES;
      Floats scale = tile.scales(group, 1);
      if (token + LANES > stop)  // what stands past the end may be NaN
        scale = select(less(lane_numbers() + broadcast_int(token), broadcast_int(stop)), scale, broadcast(0));
      store_bfloats((BFloat*)row + group * LANES, share * scale);
    }
  }
  return sum(total);
}

// Adds the weighted values of one token (f32) or of two to W vectors of N rows; `at`: number of the share, or
// of the pair of shares.
template <CacheKind K, int N, int W>
TRIVET_INLINE void add_values(const uint8_t* values, size_t ahead, const AttentionScratch& scratch, int at,
                              bool is_odd, Floats (&acc)[N][W]) {
  if constexpr (K == CACHE_F32) {
    Floats vectors[W];
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) {
      vectors[v] = load((const float*)values + v * LANES);
      prefetch(values + ahead + v * 64);
    }
#pragma GCC unroll 6
    for (int i = 0; i < N; i++) {
      const Floats share = broadcast(scratch.scores[i][at]);
#pragma GCC unroll 4
      for (int v = 0; v < W; v++) acc[i][v] = fma(vectors[v], share, acc[i][v]);
    }
  } else {
    Ints pairs[W];
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) {
      Ints pair = load_ints(values + v * 64);
      // The pair's second token does not exist: what stands there may be NaN.
      if (is_odd) pair = pair & broadcast_int(0xffff);
      pairs[v] = in_register(pair);
      if constexpr (K != CACHE_INT8) prefetch(values + ahead + v * 64);
    }
#pragma GCC unroll 6
    for (int i = 0; i < N; i++) {
      const int32_t share = ((const int32_t*)scratch.scores[i])[at];
#pragma GCC unroll 4
      for (int v = 0; v < W; v++) acc[i][v] = dot_pairs(acc[i][v], pairs[v], share);
    }
  }
}

// Values of keys [start, stop) of the piece, weighted with their shares, for W vectors of the head from
// `vector` on.
template <CacheKind K, int N, int W>
void weigh(const Tile<K>& tile, int start, int stop, int vector, float* const* out) {
  constexpr int TOKENS = K == CACHE_F32 ? 1 : 2, BYTES = K == CACHE_F32 ? 4 : 2;
  const size_t row_bytes = (size_t)tile.head_dim * TOKENS * BYTES;
  Floats acc[N][W];
#pragma GCC unroll 6
  for (int i = 0; i < N; i++)
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) acc[i][v] = broadcast(0);
  for (int key = start; key < stop; key += LANES) {
    const int group = key / LANES;
    if constexpr (K == CACHE_INT8)
      for (; tile.done.values <= group; tile.done.values++)
        unpack_part((const int8_t*)tile.view.values(group), tile.head_dim, (BFloat*)tile.values(group),
                    tile.after_values(group));
    const uint8_t* values = (const uint8_t*)tile.values(group) + (size_t)vector * LANES * TOKENS * BYTES;
    const size_t ahead = tile.after_values(group) - tile.view.values(group);
    const int count = std::min(LANES, stop - key);
    int at = key / TOKENS;
    for (const int end = at + count / TOKENS; at < end; at++, values += row_bytes)
      add_values<K, N, W>(values, ahead, tile.scratch, at, false, acc);
    if (count % TOKENS) add_values<K, N, W>(values, ahead, tile.scratch, at, true, acc);
  }
#pragma GCC unroll 6
  for (int i = 0; i < N; i++)
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) store(out[i] + PARTIAL_HEAD + (vector + v) * LANES, acc[i][v]);
}

template <CacheKind K, int N>
void weigh_slice(const Tile<K>& tile, int start, int stop, int vector, int width, float* const* out) {
  if constexpr (TILE_VECTORS >= 4)
    if (width == 4) return weigh<K, N, 4>(tile, start, stop, vector, out);
  if constexpr (TILE_VECTORS >= 3)
    if (width == 3) return weigh<K, N, 3>(tile, start, stop, vector, out);
  if constexpr (TILE_VECTORS >= 2)
    if (width == 2) return weigh<K, N, 2>(tile, start, stop, vector, out);
  weigh<K, N, 1>(tile, start, stop, vector, out);
}

template <CacheKind K, int N>
void score_slice(const Tile<K>& tile, int group, int width, const int* first, const int* last,
                 Floats (&peaks)[N]) {
  if constexpr (TILE_VECTORS >= 4)
    if (width == 4) return score_groups<K, N, 4>(tile, group, first, last, peaks);
  if constexpr (TILE_VECTORS >= 3)
    if (width == 3) return score_groups<K, N, 3>(tile, group, first, last, peaks);
  if constexpr (TILE_VECTORS >= 2)
    if (width == 2) return score_groups<K, N, 2>(tile, group, first, last, peaks);
  score_groups<K, N, 1>(tile, group, first, last, peaks);
}

// One piece for N rows: keys [start, stop) counted from the piece's first. A row that sees none of them gets
// numbers that mean nothing.
template <CacheKind K, int N>
void attend_tile(const Tile<K>& tile, int stop, const int* first, const int* last, float* const* out) {
  const int from = tile.from, to = tile.to;
  Floats peaks[N];
  for (int i = 0; i < N; i++) peaks[i] = broadcast(HIDDEN);
  for (int group = from; group < to; group += TILE_VECTORS)
    score_slice<K, N>(tile, group, std::min(TILE_VECTORS, to - group), first, last, peaks);
  for (int i = 0; i < N; i++) {
    out[i][0] = largest(peaks[i]);
    out[i][1] = write_shares(tile, tile.scratch.scores[i], out[i][0], from, to, tile.start + stop);
  }
  const int vectors = tile.head_dim / LANES, slices = (vectors + TILE_VECTORS - 1) / TILE_VECTORS;
  for (int slice = 0, vector = 0; slice < slices; slice++) {
    const int width = (vectors - vector + slices - slice - 1) / (slices - slice);  // even shares
    weigh_slice<K, N>(tile, from * LANES, stop, vector, width, out);
    vector += width;
  }
}

template <CacheKind K>
void attend_rows(const Tile<K>& tile, int count, int stop, const int* first, const int* last,
                 float* const* out) {
  switch (count) {
    case 1: return attend_tile<K, 1>(tile, stop, first, last, out);
    case 2: return attend_tile<K, 2>(tile, stop, first, last, out);
    case 3: return attend_tile<K, 3>(tile, stop, first, last, out);
  }
  if constexpr (TILE_ROWS > 3) {
    if (count == 4) return attend_tile<K, 4>(tile, stop, first, last, out);
    if (count == 5) return attend_tile<K, 5>(tile, stop, first, last, out);
    attend_tile<K, 6>(tile, stop, first, last, out);
  }
}

}  // namespace trivet
