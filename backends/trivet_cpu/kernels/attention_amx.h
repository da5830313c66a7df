// Attention on AMX: 16 query rows and a piece of the keys at a time, both products in tile registers.
//
// Groups of 16 tokens lie in the cache as TDPBF16PS wants its second operand: 16 lines of keys are 32 numbers of
// the head times 16 tokens, 8 lines of values 16 tokens times 16 numbers. The other half of a tile of values is in
// another group. Half a tile takes as long as a whole one; to copy values side by side took longer still (one core
// of an Emerald Rapids, decode of 8 sequences of 2,048 tokens: 0.97 ms a layer, with halves 0.56).
//
// A row's result depends on no other row, so decodes and chunks agree bit for bit: all rows come here. With the
// three rows of a decode, dot products took 0.61 ms there: both wait for memory. Fetching ahead made it slower.
//
// Reference: models/torch_attention.py. Tests: test_native_attention.py, tests/contract, rules 2 to 4 and chunks.
#pragma once

#include "attention_tile.h"
#include "tiles.h"

#if defined(__AMX_BF16__)
namespace trivet {

// Tile registers: four results; then operands, 32 numbers deep or 16.
class AttentionTiles {
 public:
  static constexpr int ROWS = 4, HALF_ROWS = 5, CACHE = 6, HALF_CACHE = 7;

  explicit AttentionTiles(int rows) {
    TileShapes shapes;
    for (int tile = 0; tile < CACHE; tile++) shapes.lines[tile] = rows;
    shapes.line_bytes[HALF_ROWS] = TILE_LINE_BYTES / 2;
    shapes.lines[HALF_CACHE] = TILE_LINES / 2;
    shapes.load();
  }
  ~AttentionTiles() { TileShapes().load(); }  // as the step has them
};

template <CacheKind K>
class TiledAttention {
 public:
  TiledAttention(const Cache& cache, int head, const int32_t* table, const Queries& q, AttentionScratch& scratch)
      : cache_(cache), head_(head), table_(table), q_(q), s_(scratch), dim_(cache.head_dim),
        vectors_(dim_ / LANES), end_(q.last[q.count - 1]) {}

  // As `attend` of attention.h.
  void run(Pieces pieces, float* partials, size_t piece_stride) {
    const AttentionTiles tiles(std::min(LANES, q_.count));
    write_queries();
    for (piece_ = pieces.first; piece_ < pieces.last; piece_++) {
      const int start = piece_ * PIECE_KEYS, stop = std::min(start + PIECE_KEYS, end_);
      view_ = view_of(cache_, head_, table_, start, stop, end_);
      num_ready_ = (std::max(start, q_.first[0]) - start) / LANES;
      for (int row = 0; row < q_.count; row += LANES) {
        const int count = std::min(LANES, q_.count - row);
        const int from = std::max(start, q_.first[row]) - start, to = std::min(stop, q_.last[row + count - 1]) - start;
        if (from >= to) continue;
        Rows rows{row, count, from / LANES, (to + LANES - 1) / LANES, {}, {}};
        attend_rows(rows);
        finish_piece(rows, partials, piece_stride, q_.first[row] >= start);
      }
    }
    if (!partials)
      for (int row = 0; row < q_.count; row++) finish(sum_of(row), dim_, q_.out[row]);
  }

 private:
  static constexpr ptrdiff_t SCORE_BYTES = TILE_KEYS * sizeof(float);
  typedef AttentionTiles T;

  // What is computed at once: one tile of rows.
  struct Rows {
    int first, count;
    int from, to;  // groups [from, to) of the piece
    alignas(64) float peaks[LANES], sums[LANES];
  };

  void attend_rows(Rows& rows) {
    for (int group = rows.from; group < rows.to; group += 4) {
      make_ready(std::min(group + 4, rows.to));
      score_groups(rows, group);
    }
    for (int i = 0; i < rows.count; i++) find_peak(rows, i);
    for (int i = 0; i < rows.count; i++) write_shares(rows, i);
    for (int vector = 0; vector < vectors_; vector += 4) weigh(rows, vector);
  }

  BFloat* query(int row) const { return (BFloat*)s_.queries + (size_t)row * dim_; }
  float* sum_of(int row) const { return s_.sums + (size_t)row * partial_size(dim_); }

  void write_queries() {
    constexpr float LOG2_E = 1.44269504f;
    for (int row = 0; row < q_.count; row++)
      for (int d = 0; d < dim_; d += LANES)
        store_bfloats(query(row) + d, load(q_.rows[row] + d) * broadcast(LOG2_E));
  }

  static void clear_results() {
    clear_tile<0>();
    clear_tile<1>();
    clear_tile<2>();
    clear_tile<3>();
  }

  // `width` results side by side.
  static void store_results(float* out, ptrdiff_t stride, int width) {
    store_tile<0>(out, stride);
    if (width > 1) store_tile<1>(out + LANES, stride);
    if (width > 2) store_tile<2>(out + 2 * LANES, stride);
    if (width > 3) store_tile<3>(out + 3 * LANES, stride);
  }

  // ---- the cache ----

  const uint8_t* keys_of(int group) const {
    if constexpr (K == CACHE_INT8) return (const uint8_t*)(s_.unpacked + (size_t)group * LANES * dim_);
    return view_.keys(group);
  }

  const uint8_t* values_of(int group) const {
    if constexpr (K == CACHE_INT8)
      return (const uint8_t*)(s_.unpacked + (size_t)(PIECE_GROUPS + group) * LANES * dim_);
    return is_cut(group) ? (const uint8_t*)s_.cut_values : view_.values(group);
  }

  // Whether the sequence, as far as it is seen here, ends within the group.
  bool is_cut(int group) const { return piece_ * PIECE_KEYS + (group + 1) * LANES > end_; }

  // Groups of the piece below `to`: int8 unpacked, the last one cut; what earlier rows have seen is there.
  void make_ready(int to) {
    for (; num_ready_ < to; num_ready_++) {
      const uint8_t *keys = view_.keys(num_ready_), *values = view_.values(num_ready_);
      if constexpr (K == CACHE_INT8) {
        unpack_part((const int8_t*)keys, dim_, (BFloat*)keys_of(num_ready_), values);
        unpack_part((const int8_t*)values, dim_, (BFloat*)values_of(num_ready_), view_.keys(num_ready_ + AHEAD));
        continue;
      }
      if (is_cut(num_ready_)) cut_values(values, end_ - piece_ * PIECE_KEYS - num_ready_ * LANES);
    }
  }

  // The values of the first `count` tokens of a group, and zeros: what stands past the end may be NaN.
  void cut_values(const uint8_t* values, int count) {
    for (int pair = 0; pair < LANES / 2; pair++) {
      const Ints mask = broadcast_int(2 * pair + 1 < count ? -1 : 2 * pair < count ? 0xffff : 0);
      for (int d = 0; d < dim_; d += LANES) {
        const size_t at = ((size_t)pair * dim_ + d) * 2;
        const Ints pairs = load_ints(values + at * sizeof(BFloat)) & mask;
        memcpy(s_.cut_values + at, &pairs, sizeof pairs);
      }
    }
  }

  // ---- scores ----

  // Of four groups at most: 128 * head_dim FLOPs a row.
  void score_groups(const Rows& rows, int group) {
    const int width = std::min(4, rows.to - group);
    const uint8_t* keys[4];
    for (int i = 0; i < 4; i++) keys[i] = keys_of(group + std::min(i, width - 1));
    clear_results();
    int d = 0;
    for (; d + TILE_PAIRS <= dim_; d += TILE_PAIRS) score_slice<T::ROWS, T::CACHE>(rows, keys, width, d);
    if (d < dim_) score_slice<T::HALF_ROWS, T::HALF_CACHE>(rows, keys, width, d);
    store_results(s_.tile_scores[0] + group * LANES, SCORE_BYTES, width);
  }

  // The numbers of the head from `d` on, as many as the operands are deep.
  template <int A, int B>
  void score_slice(const Rows& rows, const uint8_t* const* keys, int width, int d) const {
    const size_t offset = (size_t)d * LANES * sizeof(BFloat);
    load_tile<A>(query(rows.first) + d, dim_ * sizeof(BFloat));
    load_tile<B>(keys[0] + offset, TILE_LINE_BYTES);
    multiply_tiles<0, A, B>();
    if (width < 2) return;
    load_tile<B>(keys[1] + offset, TILE_LINE_BYTES);
    multiply_tiles<1, A, B>();
    if (width < 3) return;
    load_tile<B>(keys[2] + offset, TILE_LINE_BYTES);
    multiply_tiles<2, A, B>();
    if (width < 4) return;
    load_tile<B>(keys[3] + offset, TILE_LINE_BYTES);
    multiply_tiles<3, A, B>();
  }

  // ---- shares ----

  static Floats seen_of(const Floats& scores, int key, int first, int last) {
    const Ints keys = lane_numbers() + broadcast_int(key);
    return select(less(broadcast_int(first - 1), keys) & less(keys, broadcast_int(last)), scores, broadcast(HIDDEN));
  }

  // int8: of the keys of a group, or of its values.
  Floats scales_of(int group, int part) const {
    return load_bfloats((const BFloat*)(view_.keys(group) + 2 * view_.part_bytes) + part * LANES);
  }

  // Pairs of groups that row `i` sees, of those with scores.
  Pieces pairs_of(const Rows& rows, int i) const {
    const int start = piece_ * PIECE_KEYS, from = std::max(rows.from, (q_.first[rows.first + i] - start) / LANES) / 2;
    const int last = q_.last[rows.first + i] - start;
    return {from, std::max(from, std::min((rows.to + 1) / 2, (last + TILE_PAIRS - 1) / TILE_PAIRS))};
  }

  // The largest score of row `i`, and its scores as they are compared: scaled, and hidden where it does not see.
  void find_peak(Rows& rows, int i) {
    const int start = piece_ * PIECE_KEYS, first = q_.first[rows.first + i] - start;
    const int last = q_.last[rows.first + i] - start;
    const Pieces pairs = pairs_of(rows, i);
    Floats peaks[2] = {broadcast(HIDDEN), broadcast(HIDDEN)};
    for (int pair = pairs.first; pair < pairs.last; pair++) {
      const int key = pair * TILE_PAIRS;
      const bool hides = key < first || key + TILE_PAIRS > last;
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        float* at = s_.tile_scores[i] + key + half * LANES;
        Floats lanes = load(at);
        if constexpr (K == CACHE_INT8) lanes = lanes * scales_of(2 * pair + half, 0);
        if (hides) lanes = seen_of(lanes, key + half * LANES, first, last);
        if (hides || K == CACHE_INT8) store(at, lanes);
        peaks[half] = maximum(lanes, peaks[half]);  // a NaN is no peak; it reaches the sum by its share
      }
    }
    rows.peaks[i] = largest(maximum(peaks[0], peaks[1]));
  }

  // Of row `i`: the sum of the shares, and the shares as bfloats in place of the scores, two groups at a time; what
  // the row does not see has the share 0.
  void write_shares(Rows& rows, int i) {
    const Pieces pairs = pairs_of(rows, i);
    const float* scores = s_.tile_scores[i];
    const Floats peak = broadcast(rows.peaks[i]);
    Floats sums[2] = {broadcast(0), broadcast(0)};
    char* shares = (char*)s_.tile_scores[i];
    for (int pair = pairs.first; pair < pairs.last; pair++) {
      Floats share[2];
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        share[half] = power_of_two<4>(load(scores + pair * TILE_PAIRS + half * LANES) - peak);
        sums[half] = sums[half] + share[half];
        if constexpr (K == CACHE_INT8) share[half] = share[half] * value_scales(2 * pair + half);
      }
      _mm512_storeu_si512(shares + pair * TILE_LINE_BYTES,
                          (__m512i)_mm512_cvtne2ps_pbh((__m512)share[1].p[0], (__m512)share[0].p[0]));
    }
    rows.sums[i] = sum(sums[0] + sums[1]);
    for (int pair = rows.from / 2; pair < pairs.first; pair++)
      memset(shares + pair * TILE_LINE_BYTES, 0, TILE_LINE_BYTES);
    for (int pair = pairs.last; pair < (rows.to + 1) / 2; pair++)
      memset(shares + pair * TILE_LINE_BYTES, 0, TILE_LINE_BYTES);
  }

  // What stands past the end may be NaN.
  Floats value_scales(int group) const {
    const Ints keys = lane_numbers() + broadcast_int(piece_ * PIECE_KEYS + group * LANES);
    return select(less(keys, broadcast_int(end_)), scales_of(group, 1), broadcast(0));
  }

  // ---- values ----

  // Weighted values for four vectors of the head at most: 128 FLOPs a row and key.
  void weigh(const Rows& rows, int vector) const {
    const int width = std::min(4, vectors_ - vector);
    const ptrdiff_t value_bytes = (ptrdiff_t)dim_ * 2 * sizeof(BFloat);
    clear_results();
    for (int group = rows.from; group < rows.to; group++) {
      const uint8_t* values = values_of(group) + vector * TILE_LINE_BYTES;
      load_tile<T::HALF_ROWS>((const char*)s_.tile_scores + group * TILE_LINE_BYTES / 2, SCORE_BYTES);
      load_tile<T::HALF_CACHE>(values, value_bytes);
      multiply_tiles<0, T::HALF_ROWS, T::HALF_CACHE>();
      if (width < 2) continue;
      load_tile<T::HALF_CACHE>(values + TILE_LINE_BYTES, value_bytes);
      multiply_tiles<1, T::HALF_ROWS, T::HALF_CACHE>();
      if (width < 3) continue;
      load_tile<T::HALF_CACHE>(values + 2 * TILE_LINE_BYTES, value_bytes);
      multiply_tiles<2, T::HALF_ROWS, T::HALF_CACHE>();
      if (width < 4) continue;
      load_tile<T::HALF_CACHE>(values + 3 * TILE_LINE_BYTES, value_bytes);
      multiply_tiles<3, T::HALF_ROWS, T::HALF_CACHE>();
    }
    store_results(s_.partials + vector * LANES, dim_ * sizeof(float), width);
  }

  // ---- results ----

  void finish_piece(const Rows& rows, float* partials, size_t piece_stride, bool is_first) const {
    const size_t size = partial_size(dim_);
    float* const to = partials ? partials + piece_ * piece_stride + rows.first * size : sum_of(rows.first);
    if (partials || is_first)
      copy_rows(rows, to);
    else
      merge_rows(rows, to);
  }

  void copy_rows(const Rows& rows, float* to) const {
    for (int i = 0; i < rows.count; i++, to += partial_size(dim_)) {
      to[0] = rows.peaks[i];
      to[1] = rows.sums[i];
      for (int d = 0; d < dim_; d += LANES) store(to + PARTIAL_HEAD + d, load(s_.partials + i * dim_ + d));
    }
  }

  // As `merge_into`, for all rows side by side.
  void merge_rows(const Rows& rows, float* to) const {
    const int size = partial_size(dim_);
    alignas(64) float peaks[LANES] = {}, sums[LANES] = {}, factors[2][LANES];
    for (int i = 0; i < rows.count; i++) {
      peaks[i] = to[i * size];
      sums[i] = to[i * size + 1];
    }
    const Floats peak = maximum(load(peaks), load(rows.peaks));
    const Floats old_share = power_of_two<4>(load(peaks) - peak), new_share = power_of_two<4>(load(rows.peaks) - peak);
    store(peaks, peak);
    store(sums, fma(load(rows.sums), new_share, load(sums) * old_share));
    store(factors[0], old_share);
    store(factors[1], new_share);
    for (int i = 0; i < rows.count; i++, to += size) {
      to[0] = peaks[i];
      to[1] = sums[i];
      const Floats old_factor = broadcast(factors[0][i]), new_factor = broadcast(factors[1][i]);
      const float* values = s_.partials + i * dim_;
      for (int d = 0; d < dim_; d += LANES)
        store(to + PARTIAL_HEAD + d, fma(load(values + d), new_factor, load(to + PARTIAL_HEAD + d) * old_factor));
    }
  }

  const Cache& cache_;
  const int head_;
  const int32_t* const table_;
  const Queries& q_;
  AttentionScratch& s_;
  const int dim_, vectors_, end_;
  int piece_ = 0;
  View view_;          // of the piece
  int num_ready_ = 0;  // its groups below this one are ready
};

}  // namespace trivet
#endif
