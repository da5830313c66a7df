// Paged attention with grouped queries, for decode steps and chunks alike: which kernel a cache wants.
//
// Reference: models/torch_attention.py. Tests: test_native_attention.py, tests/contract, rules 2 to 4 and chunks.
#include "attention.h"

namespace trivet {

// attention_pieces.h, compiled in a file for each kind.
template <CacheKind K>
void attend_with(const Cache& cache, int head, const int32_t* table, const Queries& q, Pieces pieces,
                 float* partials, size_t piece_stride, AttentionScratch& scratch);
template <CacheKind K>
void merge_with(int dim, const Queries& q, const float* partials, size_t piece_stride, float* sum);

Pieces pieces_of(const Queries& q) {
  return {q.first[0] / PIECE_KEYS, (q.last[q.count - 1] + PIECE_KEYS - 1) / PIECE_KEYS};
}

void attend(const Cache& cache, int head, const int32_t* table, const Queries& queries, Pieces pieces,
            float* partials, size_t piece_stride, AttentionScratch& scratch) {
  const auto with = cache.kind == CACHE_F32    ? attend_with<CACHE_F32>
                    : cache.kind == CACHE_BF16 ? attend_with<CACHE_BF16>
                                               : attend_with<CACHE_INT8>;
  with(cache, head, table, queries, pieces, partials, piece_stride, scratch);
}

void merge(const Cache& cache, const Queries& queries, const float* partials, size_t piece_stride,
           AttentionScratch& scratch) {
  const auto with = cache.kind == CACHE_F32 ? merge_with<CACHE_F32> : merge_with<CACHE_BF16>;
  with(cache.head_dim, queries, partials, piece_stride, scratch.partials);
}

}  // namespace trivet
