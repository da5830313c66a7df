// Cutting of a step's attention. Reference: none, it computes nothing. Test: test_native_attention.py.
#include "attention_work.h"

#include <algorithm>

namespace trivet {
namespace {

// A unit of a split sequence is at most this part of what a thread has to do on average: little enough that
// threads end together, enough that taking a unit (0.3 us) and merging it cost nothing beside it.
constexpr int UNITS_A_THREAD = 8;

int num_pieces(int num_keys) { return (num_keys + PIECE_KEYS - 1) / PIECE_KEYS; }

// Query rows of one KV head.
int rows_of(const LayerQueries& layer, const AttentionUnit& unit) {
  return unit.count * (layer.num_heads / layer.cache->num_heads);
}

// Floats of the partial results of one piece.
size_t piece_stride(const LayerQueries& layer, const AttentionUnit& unit) {
  return (size_t)unit.count * layer.num_heads * partial_size(layer.cache->head_dim);
}

}  // namespace

void HeadLimits::include(int num_heads, const Cache& cache) {
  group = std::max(group, num_heads / cache.num_heads);
  num_kv_heads = std::max(num_kv_heads, cache.num_heads);
  row_floats = std::max(row_floats, num_heads * partial_size(cache.head_dim));
}

AttentionWork::AttentionWork(const StepSequences& seqs, const HeadLimits& limits, int num_threads,
                             const AttentionSpace& space, bool keeps_order)
    : seqs_(seqs), limits_(limits), partials_(space.partials), num_free_(space.num_partials) {
  const int tokens = tokens_of_unit(num_threads);
  int64_t total = 0;  // pieces of all units
  for (int seq = 0; seq < seqs.num_seqs; seq++) {
    const int count = seqs.query_start_loc[seq + 1] - seqs.query_start_loc[seq];
    total += (int64_t)num_pieces(seqs.seq_lens[seq]) * ((count + tokens - 1) / tokens);
  }
  const int share = (int)std::max<int64_t>(1, total / (num_threads * UNITS_A_THREAD));
  for (int seq = 0; seq < seqs.num_seqs; seq++) {
    const int count = seqs.query_start_loc[seq + 1] - seqs.query_start_loc[seq];
    const bool is_long = num_threads > 1 && num_pieces(seqs.seq_lens[seq]) >= 2 * share;
    if (!is_long || count > tokens || !add_split(seq, share)) add_chunk(seq, tokens);
  }
  const auto cost = [](const AttentionUnit& unit) {
    return (int64_t)(unit.pieces.last - unit.pieces.first) * unit.count;
  };
  if (!keeps_order)
    std::stable_sort(units_.begin(), units_.end(),
                     [&](const AttentionUnit& a, const AttentionUnit& b) { return cost(a) > cost(b); });
  if (!splits_.empty()) done_.reset(new std::atomic<int32_t>[splits_.size() * limits_.num_kv_heads]());
}

// Large units fetch keys and values for many rows; in a short chunk they would leave threads without work.
int AttentionWork::tokens_of_unit(int num_threads) const {
  const int least = std::max(1, MIN_UNIT_QUERIES / limits_.group);
  int tokens = std::max(1, UNIT_QUERIES / limits_.group);
  const auto num_units = [&] {
    int count = 0;
    for (int seq = 0; seq < seqs_.num_seqs; seq++)
      count += (seqs_.query_start_loc[seq + 1] - seqs_.query_start_loc[seq] + tokens - 1) / tokens;
    return count * limits_.num_kv_heads;
  };
  while (tokens >= 2 * least && num_units() < num_threads * UNITS_A_THREAD) tokens /= 2;
  return tokens;
}

void AttentionWork::add_chunk(int seq, int tokens) {
  const int start = seqs_.query_start_loc[seq], stop = seqs_.query_start_loc[seq + 1];
  for (int first = start; first < stop; first += tokens) {
    const int count = std::min(tokens, stop - first);
    const int num_keys = seqs_.seq_lens[seq] - (stop - first - count);
    units_.push_back({seq, first, count, {0, num_pieces(num_keys)}, -1});
  }
}

bool AttentionWork::add_split(int seq, int pieces_of_unit) {
  const int first = seqs_.query_start_loc[seq], count = seqs_.query_start_loc[seq + 1] - first;
  const int last = num_pieces(seqs_.seq_lens[seq]);
  const int64_t size = (int64_t)last * count * limits_.row_floats;
  if (count == 0 || size > num_free_) return false;
  num_free_ -= size;
  splits_.push_back({0, partials_ + num_free_});
  for (int piece = 0; piece < last; piece += pieces_of_unit, splits_.back().num_units++)
    units_.push_back(
        {seq, first, count, {piece, std::min(piece + pieces_of_unit, last)}, (int32_t)splits_.size() - 1});
  return true;
}

Queries AttentionWork::queries_of(const LayerQueries& layer, const AttentionUnit& unit, int head,
                                  int first_row) const {
  const int dim = layer.cache->head_dim, group = layer.num_heads / layer.cache->num_heads;
  // Position of the sequence's token that stands first in the step.
  const int offset = seqs_.seq_lens[unit.seq] - seqs_.query_start_loc[unit.seq + 1];
  Queries queries;
  queries.count = std::min(UNIT_QUERIES, unit.count * group - first_row);
  for (int i = 0; i < queries.count; i++) {
    const int number = first_row + i, token = unit.first + number / group, stop = offset + token + 1;
    float* row = layer.rows + token * layer.row_stride + (size_t)(head * group + number % group) * dim;
    queries.rows[i] = queries.out[i] = row;
    queries.last[i] = stop;
    queries.first[i] = layer.window ? std::max(0, stop - layer.window) : 0;
  }
  return queries;
}

float* AttentionWork::partials_of(const LayerQueries& layer, const AttentionUnit& unit, int head,
                                  int first_row) const {
  const size_t row = (size_t)head * rows_of(layer, unit) + first_row;
  return splits_[unit.split].partials + row * partial_size(layer.cache->head_dim);
}

void AttentionWork::attend_unit(const LayerQueries& layer, const AttentionUnit& unit, int head,
                                AttentionScratch& scratch) const {
  const Cache& cache = *layer.cache;
  const int32_t* table = seqs_.block_table + unit.seq * seqs_.table_stride;
  for (int row = 0, num_rows = rows_of(layer, unit); row < num_rows; row += UNIT_QUERIES) {
    const Queries queries = queries_of(layer, unit, head, row);
    const Pieces all = pieces_of(queries);
    if (unit.split < 0) {
      attend(cache, head, table, queries, all, nullptr, 0, scratch);
      continue;
    }
    const Pieces pieces{std::max(unit.pieces.first, all.first), std::min(unit.pieces.last, all.last)};
    attend(cache, head, table, queries, pieces, partials_of(layer, unit, head, row), piece_stride(layer, unit),
           scratch);
  }
}

bool AttentionWork::run(const LayerQueries& layer, int number, int head, AttentionScratch& scratch) {
  const AttentionUnit& unit = units_[number];
  attend_unit(layer, unit, head, scratch);
  if (unit.split < 0) return true;
  // Who comes last merges what all have written, and leaves the counter as the next layer wants it.
  std::atomic<int32_t>& done = done_[unit.split * limits_.num_kv_heads + head];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < splits_[unit.split].num_units) return false;
  done.store(0, std::memory_order_relaxed);
  for (int row = 0, num_rows = rows_of(layer, unit); row < num_rows; row += UNIT_QUERIES)
    merge(*layer.cache, queries_of(layer, unit, head, row), partials_of(layer, unit, head, row),
          piece_stride(layer, unit), scratch);
  return true;
}

}  // namespace trivet
