// Attention of a few query rows of one sequence and KV head over its paged cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_cache.h"
#include "tiles.h"

namespace trivet {

constexpr int MAX_HEAD_DIM = 512;
// Query rows that are computed together: each key and value is fetched once for all of them. Results do not depend
// on it.
constexpr int MIN_UNIT_QUERIES = 24;
constexpr int MAX_UNIT_QUERIES = 96;
constexpr int UNIT_QUERIES = HAS_TILES ? MAX_UNIT_QUERIES : MIN_UNIT_QUERIES;
// Keys whose scores are held at once. Each piece of so many, counted from the sequence's first token, is
// computed by itself and the pieces are merged in order: who computes which piece changes no bit.
constexpr int PIECE_KEYS = 256;
constexpr int PIECE_GROUPS = PIECE_KEYS / LANES;
// Floats between two rows of scores on AMX: the gap puts the rows in different sets of the CPU's cache.
constexpr int TILE_KEYS = PIECE_KEYS + LANES;

// A result that is not divided by its sum yet, as floats: the largest score, the sum of the shares, 14 unused,
// then shares times values [head_dim].
constexpr int PARTIAL_HEAD = LANES;
inline int partial_size(int head_dim) { return PARTIAL_HEAD + head_dim; }

struct Queries {
  int count;                        // 1 .. UNIT_QUERIES
  const float* rows[UNIT_QUERIES];  // [head_dim], rotated and multiplied with the scale
  float* out[UNIT_QUERIES];         // [head_dim], may be the row itself
  int first[UNIT_QUERIES];          // keys [first, last) are seen; neither falls from row to row
  int last[UNIT_QUERIES];
};

// Scratch of one thread.
struct alignas(64) AttentionScratch {
  int32_t queries[MAX_UNIT_QUERIES * MAX_HEAD_DIM];
  float scores[8][PIECE_KEYS];  // of a tile; shares take their place
  float tile_scores[LANES][TILE_KEYS];  // of a tile of AMX
  float sums[MAX_UNIT_QUERIES * (PARTIAL_HEAD + MAX_HEAD_DIM)];
  float partials[LANES * (PARTIAL_HEAD + MAX_HEAD_DIM)];
  BFloat cut_values[LANES * MAX_HEAD_DIM];  // of the last group, AMX
  BFloat* unpacked;  // int8 caches: [2][PIECE_KEYS * head_dim], keys and values of a piece
};

struct Pieces {
  int first, last;  // [first, last)
};

// The pieces of which any row sees a key.
Pieces pieces_of(const Queries& queries);

// Pieces [first, last) of the keys, as FlashAttention does it (Dao et al. 2022).
// `partials` null: these are all, and `queries.out` = softmax(q . keys) values. Otherwise the partial result
// of each piece and row goes to partials + piece * piece_stride + row * partial_size.
// Slots at or past the sequence's length are selected away, never multiplied.
// Per query and key 4 * head_dim FLOPs.
void attend(const Cache& cache, int head, const int32_t* block_table, const Queries& queries, Pieces pieces,
            float* partials, size_t piece_stride, AttentionScratch& scratch);

// `queries.out` from the partial results of all pieces.
void merge(const Cache& cache, const Queries& queries, const float* partials, size_t piece_stride,
           AttentionScratch& scratch);

}  // namespace trivet
