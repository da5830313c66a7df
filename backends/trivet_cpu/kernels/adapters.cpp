// What adapters add to a product. Reference, tests and layout: adapters.h.
#include "adapters.h"

#include <algorithm>

#include "product.h"

namespace trivet {
namespace {

TRIVET_INLINE Floats load_values(const float* x) { return load(x); }
TRIVET_INLINE Floats load_values(const BFloat* x) { return load_bfloats(x); }

// Tokens that read a vector of A while it is in a register: with four rows of A 16 sums, which AVX-512 alone has
// room for.
constexpr int TOKENS_AT_ONCE = PART == 16 ? 4 : 1;

// lows[t][0 .. R) = R rows of A times the x of T tokens; a sum's order does not depend on either.
template <class Value, int R, int T>
void dots(const Value* a, int columns, const float* const* x, float* const* lows) {
  Floats acc[R][T];
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) acc[r][t] = broadcast(0);
  for (int i = 0; i < columns; i += LANES) {
    Floats values[T];
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) values[t] = load(x[t] + i);
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
      const Floats row = load_values(a + (size_t)r * columns + i);
#pragma GCC unroll 4
      for (int t = 0; t < T; t++) acc[r][t] = fma(row, values[t], acc[r][t]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int t = 0; t < T; t++) lows[t][r] = sum(acc[r][t]);
}

template <class Value, int R>
void rows_of_a(const Value* a, int columns, int num_tokens, const float* const* x, float* const* lows) {
  int t = 0;
  for (; t + TOKENS_AT_ONCE <= num_tokens; t += TOKENS_AT_ONCE)
    dots<Value, R, TOKENS_AT_ONCE>(a, columns, x + t, lows + t);
  for (; t < num_tokens; t++) dots<Value, R, 1>(a, columns, x + t, lows + t);
}

template <class Value>
void all_rows_of_a(const Value* a, int num_rows, int columns, int num_tokens, const float* const* x, float** lows) {
  const auto go_on = [&](int count) {
    a += (size_t)count * columns;
    for (int t = 0; t < num_tokens; t++) lows[t] += count;
  };
  for (; num_rows >= 4; num_rows -= 4, go_on(4)) rows_of_a<Value, 4>(a, columns, num_tokens, x, lows);
  for (; num_rows; num_rows--, go_on(1)) rows_of_a<Value, 1>(a, columns, num_tokens, x, lows);
}

template <class Value>
void add_rows_of_b(const Value* b, int rank, const float* low, float scale, float* out, int width) {
  Floats sums[2] = {broadcast(0), broadcast(0)};
  for (int r = 0; r < rank; r++) {
    const Floats factor = broadcast(low[r]);
    sums[0] = fma(load_values(b + r * UNIT_ROWS), factor, sums[0]);
    sums[1] = fma(load_values(b + r * UNIT_ROWS + LANES), factor, sums[1]);
  }
  store(out, fma(sums[0], broadcast(scale), load(out)));
  if (width > LANES) store(out + LANES, fma(sums[1], broadcast(scale), load(out + LANES)));
}

}  // namespace

AdapterWork::AdapterWork(const AdapterSpace& space, const int32_t* slots, int num_seqs,
                         const int32_t* query_start_loc, int which)
    : space_(space), slot_of_(space.books + (size_t)which * 5 * space.max_tokens),
      tokens_(slot_of_ + space.max_tokens), groups_((Group*)(tokens_ + space.max_tokens)) {
  std::fill_n(slot_of_, query_start_loc[num_seqs], 0);
  int num_tokens = 0;
  for (int slot = 0;;) {
    int next = 0;  // the smallest behind `slot`
    for (int seq = 0; seq < num_seqs; seq++)
      if (slots[seq] > slot && (!next || slots[seq] < next)) next = slots[seq];
    if (!next) return;
    slot = next;
    int first = num_tokens;
    for (int seq = 0; seq < num_seqs; seq++) {
      if (slots[seq] != slot) continue;
      for (int token = query_start_loc[seq]; token < query_start_loc[seq + 1]; token++) {
        slot_of_[token] = slot;
        tokens_[num_tokens++] = token;
      }
    }
    for (; first < num_tokens; first += TOKENS)
      groups_[num_groups_++] = {slot, first, std::min(TOKENS, num_tokens - first)};
  }
}

int AdapterWork::largest_rank(const AdaptedMatrix* matrices, int count) const {
  int largest = 0;
  for (int i = 0; i < count; i++)
    for (int group = 0; matrices[i].a && group < num_groups_; group++)
      largest = std::max(largest, matrices[i].ranks[groups_[group].slot]);
  return largest;
}

void AdapterWork::multiply_a(const AdaptedMatrix* matrices, int num_matrices, int largest_rank, const float* x,
                             int unit) const {
  const int piece = unit % pieces(largest_rank);
  unit /= pieces(largest_rank);
  const int low = unit % num_matrices;
  const AdaptedMatrix& matrix = matrices[low];
  const Group& group = groups_[unit / num_matrices];
  if (!matrix.a) return;
  const int begin = piece * RANKS, num_rows = std::min(RANKS, matrix.ranks[group.slot] - begin);
  if (num_rows <= 0) return;
  const float* rows[TOKENS];
  float* lows[TOKENS];
  for (int i = 0; i < group.count; i++) {
    const size_t token = tokens_[group.first + i];
    rows[i] = x + token * matrix.columns;
    lows[i] = space_.lows + (token * LOWS + low) * space_.max_rank + begin;
  }
  const size_t at = ((size_t)(group.slot - 1) * space_.max_rank + begin) * matrix.columns;
  if (space_.kind == F32)
    all_rows_of_a((const float*)matrix.a + at, num_rows, matrix.columns, group.count, rows, lows);
  else
    all_rows_of_a((const BFloat*)matrix.a + at, num_rows, matrix.columns, group.count, rows, lows);
}

void AdapterWork::add_b(const AdaptedMatrix& matrix, int low, const Product& p, int unit, int first,
                        int last) const {
  const int column = unit * UNIT_ROWS, width = p.weight->rows - column;
  for (int row = first; row < last; row++) {
    const int slot = slot_of_[row], rank = matrix.ranks[slot];
    if (!rank) continue;
    const size_t units = matrix.rows / UNIT_ROWS;
    const size_t at = ((slot - 1) * units + unit) * space_.max_rank * UNIT_ROWS;
    const float* values = space_.lows + ((size_t)row * LOWS + low) * space_.max_rank;
    float* out = p.out + (size_t)(row - p.row_base) * p.stride + (column - p.column_base);
    if (space_.kind == F32)
      add_rows_of_b((const float*)matrix.b + at, rank, values, p.scale, out, width);
    else
      add_rows_of_b((const BFloat*)matrix.b + at, rank, values, p.scale, out, width);
  }
}

}  // namespace trivet
