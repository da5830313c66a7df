// The paged KV cache of one layer: how keys and values lie in it, and how they get there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vectors.h"

namespace trivet {

// What a number of the cache is; the values are those of `native_plan.CACHE_KINDS`.
enum CacheKind : int32_t { CACHE_F32 = 0, CACHE_BF16 = 1, CACHE_INT8 = 2 };

// A block holds for each KV head [block_size / 16] groups of 16 tokens, keys and values side by side, so that
// a step reads whole pages (SmolLM2 in bfloat16: 4 KiB a group):
//   keys    f32 [head_dim][16], else [head_dim / 2][16][2]: 16 tokens are the lanes of a vector
//   values  f32 [16][head_dim], else [8][head_dim][2]: two tokens are the halves of a pair
//   int8 also: a bfloat16 scale for each token's key [16], and for its value [16]
// Bytes a token and head: 8 * head_dim, 4 * head_dim, 2 * head_dim + 4.
struct Cache {
  int32_t kind;
  int32_t block_size;  // a multiple of 16
  int32_t num_heads;   // KV heads
  int32_t head_dim;    // a multiple of 16
  uint8_t* data;       // [blocks][num_heads][block_size / 16] groups

  size_t part_bytes() const {  // of a group's keys, or values
    return (size_t)LANES * head_dim * (kind == CACHE_F32 ? 4 : kind == CACHE_BF16 ? 2 : 1);
  }
  size_t group_bytes() const { return 2 * part_bytes() + (kind == CACHE_INT8 ? 4 * LANES : 0); }

  // The group in which a block's token stands.
  uint8_t* group(int64_t block, int head, int inside) const {
    return data + ((block * num_heads + head) * (block_size / LANES) + inside / LANES) * group_bytes();
  }
};

// Store key and value [head_dim] of one token and KV head. int8: 127 numbers on each side of zero to the
// largest of the key, or value; a NaN becomes a NaN of the scale.
void write_kv(const Cache& cache, int head, int64_t slot, const float* key, const float* value);

// Keys or values of an int8 group as bfloat16 pairs, without their scale: exact. Meanwhile as many bytes
// at `ahead` are brought into the cache.
void unpack_part(const int8_t* part, int head_dim, BFloat* out, const uint8_t* ahead);

}  // namespace trivet
