// Paged attention with grouped queries, for decode steps and chunks alike.
//
// Reference: models/torch_attention.py. Test: tests/contract, rules 2 to 4 and chunks.
#include "attention.h"

#include <algorithm>

namespace trivet {
namespace {

constexpr float HIDDEN = -1e30f;  // finite: a piece in which a row sees nothing must not make inf - inf
constexpr int SLICE = 4;          // vectors of the head that a tile accumulates in registers

template <class T>
constexpr bool is_bf16 = sizeof(T) == 2;

template <class T>
struct Pages {
  const T* keys;
  const T* values;
  const int32_t* table;
  size_t block_stride;  // elements from block to block
  size_t head_offset;
  int block_size, head_dim;

  // Elements before the 16 tokens that start at `token`, the same for keys and values.
  size_t offset_of(int token) const {
    return (size_t)table[token / block_size] * block_stride + head_offset +
           (size_t)(token % block_size) * head_dim;
  }
};

// Scores of 16 keys for N queries: head_dim * 16 elements read once, 32 * head_dim FLOPs a query.
template <class T, int N>
TRIVET_INLINE void score(const T* keys, int head_dim, const Queries& q, const AttentionScratch& scratch,
                         Floats (&scores)[N]) {
#pragma GCC unroll 6
  for (int i = 0; i < N; i++) scores[i] = broadcast(0);
  if constexpr (is_bf16<T>) {
    if constexpr (N <= 3) {
      // Two chains a query: one would wait for each product.
      Floats others[N];
#pragma GCC unroll 3
      for (int i = 0; i < N; i++) others[i] = broadcast(0);
      for (int d = 0; d < head_dim / 2; d += 2) {
        const Ints a = load_ints(keys + d * 32), b = load_ints(keys + d * 32 + 32);
#pragma GCC unroll 3
        for (int i = 0; i < N; i++) {
          scores[i] = dot_pairs(scores[i], a, scratch.pairs[i][d]);
          others[i] = dot_pairs(others[i], b, scratch.pairs[i][d + 1]);
        }
      }
#pragma GCC unroll 3
      for (int i = 0; i < N; i++) scores[i] = scores[i] + others[i];
    } else {
      for (int d = 0; d < head_dim / 2; d++) {
        const Ints pairs = load_ints(keys + d * 32);
#pragma GCC unroll 6
        for (int i = 0; i < N; i++) scores[i] = dot_pairs(scores[i], pairs, scratch.pairs[i][d]);
      }
    }
  } else {
    for (int d = 0; d < head_dim; d++) {
      const Floats lanes = load(keys + d * LANES);
#pragma GCC unroll 6
      for (int i = 0; i < N; i++) scores[i] = fma(lanes, broadcast(q.rows[i][d]), scores[i]);
    }
  }
}

// Adds the weighted values of one token (float) or of two (bfloat16) to W vectors of N rows.
template <class T, int N, int W>
TRIVET_INLINE void add_values(const T* values, const AttentionScratch& scratch, int at, bool is_odd,
                              Floats (&acc)[N][W]) {
  if constexpr (is_bf16<T>) {
    Ints pairs[W];
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) {
      pairs[v] = load_ints(values + v * 32);
      // The pair's second token does not exist: what stands there may be NaN.
      if (is_odd) pairs[v] = pairs[v] & broadcast_int(0xffff);
    }
#pragma GCC unroll 6
    for (int i = 0; i < N; i++)
#pragma GCC unroll 4
      for (int v = 0; v < W; v++) acc[i][v] = dot_pairs(acc[i][v], pairs[v], scratch.pairs[i][at / 2]);
  } else {
    Floats vectors[W];
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) vectors[v] = load(values + v * LANES);
#pragma GCC unroll 6
    for (int i = 0; i < N; i++) {
      const Floats share = broadcast(scratch.scores[i][at]);
#pragma GCC unroll 4
      for (int v = 0; v < W; v++) acc[i][v] = fma(vectors[v], share, acc[i][v]);
    }
  }
}

// Values of keys [start, stop) weighted with their shares, for W vectors of the head from `vector` on.
template <class T, int N, int W>
void weigh(const Pages<T>& pages, int start, int stop, int vector, AttentionScratch& scratch) {
  Floats acc[N][W];
#pragma GCC unroll 6
  for (int i = 0; i < N; i++)
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) acc[i][v] = load(scratch.out[i] + (vector + v) * LANES);
  constexpr int TOKENS = is_bf16<T> ? 2 : 1;
  for (int token = start; token < stop; token += LANES) {
    const T* values = pages.values + pages.offset_of(token) + (size_t)vector * LANES * TOKENS;
    const int count = std::min(LANES, stop - token), whole = count / TOKENS * TOKENS;
    int t = 0;
    for (; t < whole; t += TOKENS)
      add_values<T, N, W>(values + (size_t)t * pages.head_dim, scratch, token - start + t, false, acc);
    if (t < count)
      add_values<T, N, W>(values + (size_t)t * pages.head_dim, scratch, token - start + t, true, acc);
  }
#pragma GCC unroll 6
  for (int i = 0; i < N; i++)
#pragma GCC unroll 4
    for (int v = 0; v < W; v++) store(scratch.out[i] + (vector + v) * LANES, acc[i][v]);
}

template <class T, int N>
void write_query_pairs(const Queries& q, int head_dim, AttentionScratch& scratch) {
  if constexpr (is_bf16<T>)
    for (int i = 0; i < N; i++)
      for (int d = 0; d < head_dim; d += LANES)
        store_bfloats((BFloat*)scratch.pairs[i] + d, load(q.rows[i] + d));
}

template <class T, int N>
void attend_tile(const Pages<T>& pages, const Queries& q, AttentionScratch& scratch) {
  const int head_dim = pages.head_dim, vectors = head_dim / LANES;
  float peaks[N], totals[N];
  int first = q.first[0], last = q.last[0];
  for (int i = 0; i < N; i++) {
    peaks[i] = HIDDEN;
    totals[i] = 0;
    first = std::min(first, q.first[i]);
    last = std::max(last, q.last[i]);
    std::fill_n(scratch.out[i], head_dim, 0.0f);
  }
  const Ints lanes = lane_numbers();
  for (int start = first / LANES * LANES; start < last; start += KEYS) {
    const int stop = std::min(start + KEYS, last);
    write_query_pairs<T, N>(q, head_dim, scratch);  // the shares of the piece before stand there
    Floats piece_peaks[N];
#pragma GCC unroll 6
    for (int i = 0; i < N; i++) piece_peaks[i] = broadcast(HIDDEN);
    for (int token = start; token < stop; token += LANES) {
      Floats scores[N];
      score<T, N>(pages.keys + pages.offset_of(token), head_dim, q, scratch, scores);
#pragma GCC unroll 6
      for (int i = 0; i < N; i++) {
        if (token < q.first[i] || token + LANES > q.last[i]) {
          const Ints keys = lanes + broadcast_int(token);
          const Ints seen = less(broadcast_int(q.first[i] - 1), keys) & less(keys, broadcast_int(q.last[i]));
          scores[i] = select(seen, scores[i], broadcast(HIDDEN));
        }
        piece_peaks[i] = maximum(piece_peaks[i], scores[i]);
        store(scratch.scores[i] + (token - start), scores[i]);
      }
    }
    const int padded = (stop - start + LANES - 1) / LANES * LANES;
    for (int i = 0; i < N; i++) {
      const float peak = std::max(peaks[i], largest(piece_peaks[i]));
      Floats total = broadcast(0);
      for (int k = 0; k < padded; k += LANES) {
        const Floats share = exponential(load(scratch.scores[i] + k) - broadcast(peak));
        total = total + share;
        if constexpr (is_bf16<T>)
          store_bfloats((BFloat*)scratch.pairs[i] + k, share);
        else
          store(scratch.scores[i] + k, share);
      }
      if (start != first / LANES * LANES) {
        float lanes_of[LANES];
        store(lanes_of, exponential(broadcast(peaks[i] - peak)));
        totals[i] *= lanes_of[0];
        for (int v = 0; v < vectors; v++)
          store(scratch.out[i] + v * LANES, load(scratch.out[i] + v * LANES) * broadcast(lanes_of[0]));
      }
      totals[i] += sum(total);
      peaks[i] = peak;
    }
    int v = 0;
    for (; v + SLICE <= vectors; v += SLICE) weigh<T, N, SLICE>(pages, start, stop, v, scratch);
    for (; v < vectors; v++) weigh<T, N, 1>(pages, start, stop, v, scratch);
  }
  for (int i = 0; i < N; i++)
    for (int v = 0; v < vectors; v++)
      store(q.out[i] + v * LANES, load(scratch.out[i] + v * LANES) * broadcast(1.0f / totals[i]));
}

template <class T>
void attend_with(const Cache& cache, int head, const int32_t* table, const Queries& q,
                 AttentionScratch& scratch) {
  const size_t head_size = (size_t)cache.block_size * cache.head_dim;
  const Pages<T> pages{(const T*)cache.keys,         (const T*)cache.values, table,
                       head_size * cache.num_heads, head_size * head,       cache.block_size,
                       cache.head_dim};
  switch (q.count) {
    case 1: return attend_tile<T, 1>(pages, q, scratch);
    case 2: return attend_tile<T, 2>(pages, q, scratch);
    case 3: return attend_tile<T, 3>(pages, q, scratch);
    case 4: return attend_tile<T, 4>(pages, q, scratch);
    case 5: return attend_tile<T, 5>(pages, q, scratch);
    default: return attend_tile<T, 6>(pages, q, scratch);
  }
}

}  // namespace

void attend(const Cache& cache, int head, const int32_t* table, const Queries& q, AttentionScratch& scratch) {
  if (cache.is_bf16)
    attend_with<BFloat>(cache, head, table, q, scratch);
  else
    attend_with<float>(cache, head, table, q, scratch);
}

void write_kv(const Cache& cache, int head, int64_t slot, const float* key, const float* value) {
  const int dim = cache.head_dim, inside = (int)(slot % cache.block_size), lane = inside % LANES;
  const size_t at = ((size_t)(slot / cache.block_size) * cache.num_heads + head) * cache.block_size * dim +
                    (size_t)(inside - lane) * dim;
  if (cache.is_bf16) {
    BFloat* keys = (BFloat*)cache.keys + at + lane * 2;
    BFloat* values = (BFloat*)cache.values + at + (size_t)(lane / 2) * dim * 2 + lane % 2;
    for (int d = 0; d < dim; d += 2) {
      const uint32_t pair = to_bfloat(key[d]) | (uint32_t)to_bfloat(key[d + 1]) << 16;
      memcpy(keys + (size_t)d * LANES, &pair, 4);
    }
    for (int d = 0; d < dim; d++) values[d * 2] = to_bfloat(value[d]);
  } else {
    float* keys = (float*)cache.keys + at + lane;
    for (int d = 0; d < dim; d++) keys[(size_t)d * LANES] = key[d];
    memcpy((float*)cache.values + at + (size_t)lane * dim, value, dim * sizeof(float));
  }
}

}  // namespace trivet
