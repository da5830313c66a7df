// The paged KV cache of one layer, and attention over it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace trivet {

constexpr int MAX_QUERIES = 6;   // rows of one tile: 6 x 4 accumulators of 16 lanes leave 8 registers
constexpr int KEYS = 256;        // keys whose scores are held at once: 6 KiB
constexpr int MAX_HEAD_DIM = 512;

// Keys and values of a layer, element type float or bfloat16. A block holds for each KV head
// [block_size / 16] pieces of 16 tokens:
//   keys    float [head_dim][16], bfloat16 [head_dim / 2][16][2]: 16 tokens are the lanes of a vector
//   values  float [16][head_dim], bfloat16 [8][head_dim][2]: two tokens are the halves of a pair
struct Cache {
  int32_t is_bf16;
  int32_t block_size;  // a multiple of 16
  int32_t num_heads;   // KV heads
  int32_t head_dim;    // a multiple of 16
  void* keys;
  void* values;
};

// Store key and value [head_dim] of one token and KV head: 2 * head_dim elements written.
void write_kv(const Cache& cache, int head, int64_t slot, const float* key, const float* value);

// A few query rows of one sequence and KV head.
struct Queries {
  int count;                        // 1 .. MAX_QUERIES
  const float* rows[MAX_QUERIES];   // [head_dim], rotated and multiplied with the scale
  float* out[MAX_QUERIES];          // [head_dim]
  int first[MAX_QUERIES];           // keys [first, last) are seen
  int last[MAX_QUERIES];
};

// Scratch of one thread.
struct alignas(64) AttentionScratch {
  float scores[MAX_QUERIES][KEYS];
  float out[MAX_QUERIES][MAX_HEAD_DIM];
  int32_t pairs[MAX_QUERIES][MAX_HEAD_DIM > KEYS ? MAX_HEAD_DIM / 2 : KEYS / 2];
};

// out = softmax(q . keys) values, as FlashAttention does it (Dao et al. 2022): a piece of keys at a time,
// with running maximum and sum. Slots at or past the sequence's length are selected away, never multiplied.
// Per query and key 4 * head_dim FLOPs; per tile each key and value is read once.
void attend(const Cache& cache, int head, const int32_t* block_table, const Queries& queries,
            AttentionScratch& scratch);

}  // namespace trivet
