// The attention of one step, cut into units of work that threads take.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "attention.h"

namespace trivet {

// The sequences of a step, the same for all layers.
struct StepSequences {
  int num_seqs;
  const int32_t* query_start_loc;  // [S + 1]
  const int32_t* seq_lens;         // [S]
  const int32_t* block_table;      // [S, table_stride]
  int64_t table_stride;
};

// Where a layer's queries stand, and what they see.
struct LayerQueries {
  const Cache* cache;
  int num_heads;
  int window;      // 0: none
  float* rows;     // [T, row_stride], each [num_heads, head_dim]; results take their place
  int64_t row_stride;
};

// Memory that the attention of a step needs besides the scratch of its threads.
struct AttentionSpace {
  float* partials;  // partial results of split sequences
  int64_t num_partials;
  BFloat* unpacked;  // int8 caches: [threads][unpacked_stride], at least 2 * PIECE_KEYS * head_dim each
  int64_t unpacked_stride;
};

// For one KV head: query rows of a sequence, with all the keys they see or, where there are too few units for
// the threads, with some pieces of them.
struct AttentionUnit {
  int32_t seq, first, count;  // tokens [first, first + count) of the step
  Pieces pieces;
  int32_t split;  // number of the split sequence; -1: all pieces
};

// The largest of any layer.
struct HeadLimits {
  int group = 1;       // query heads that share a KV head
  int num_kv_heads = 1;
  int row_floats = 0;  // num_heads * partial_size(head_dim)

  void include(int num_heads, const Cache& cache);
};

class AttentionWork {
 public:
  // `keeps_order`: units in the order of their tokens, else the longest first.
  AttentionWork(const StepSequences& seqs, const HeadLimits& limits, int num_threads, const AttentionSpace& space,
                bool keeps_order = false);

  int num_units() const { return (int)units_.size(); }
  const AttentionUnit& unit(int i) const { return units_[i]; }

  // Compute a unit for one KV head. True: the rows of this head are complete.
  bool run(const LayerQueries& layer, int unit, int head, AttentionScratch& scratch);

 private:
  struct Split {
    int32_t num_units;
    float* partials;  // [pieces][num_heads * count] partial results
  };

  int tokens_of_unit(int num_threads) const;
  void add_chunk(int seq, int tokens);
  bool add_split(int seq, int pieces_of_unit);
  void attend_unit(const LayerQueries& layer, const AttentionUnit& unit, int head,
                   AttentionScratch& scratch) const;
  // Query rows of a unit from `first_row` on, UNIT_QUERIES at most: one token may have more heads to a KV head.
  Queries queries_of(const LayerQueries& layer, const AttentionUnit& unit, int head, int first_row) const;
  float* partials_of(const LayerQueries& layer, const AttentionUnit& unit, int head, int first_row) const;

  const StepSequences seqs_;
  const HeadLimits limits_;
  float* const partials_;
  int64_t num_free_;
  std::vector<AttentionUnit> units_;
  std::vector<Split> splits_;
  std::unique_ptr<std::atomic<int32_t>[]> done_;  // [splits][KV heads] units of the current layer
};

}  // namespace trivet
