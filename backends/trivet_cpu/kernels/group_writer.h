// Writes activations in the forms that products read, 32 columns of a row at a time.
#pragma once

#include "weights.h"

namespace trivet {

// Vectors compute the scales of sixteen groups side by side: one group alone would wait for each step of its own,
// and for lines of the result that another core holds (with neighbours at work 11 % of a prompt's time, Zen 4).
class GroupWriter {
 public:
  explicit GroupWriter(const Activations& out) : out_(out) {}
  ~GroupWriter() {
    if (count_) quantise();
  }
  GroupWriter(const GroupWriter&) = delete;
  GroupWriter& operator=(const GroupWriter&) = delete;

  // Columns [column, column + 32) of a row, in every wanted form; the integers stand there once the writer is gone.
  // NaN and Inf come through.
  void add(size_t row, int column, const Floats& low, const Floats& high) {
    if (out_.f32) {
      float* at = out_.f32 + row * out_.columns + column;
      store(at, low);
      store(at + LANES, high);
    }
    if (out_.bf16) {
      BFloat* at = out_.line(row, column);
      store_bfloats(at, low);
      store_bfloats(at + LANES, high);
    }
    if (!out_.groups) return;
    const int is_second = column / GROUP % 2;
    BFloat* sums = out_.group(row, column - is_second * GROUP)->sums;
    if (!is_second && column + GROUP == out_.columns) sums[1] = 0;
    groups_[count_] = out_.group(row, column);
    sums_[count_] = sums + is_second;
    store(numbers_[count_], low);
    store(numbers_[count_] + LANES, high);
    if (++count_ == LANES) quantise();
  }

 private:
  void quantise();

  const Activations out_;
  int count_ = 0;
  QuantisedGroup* groups_[LANES];
  BFloat* sums_[LANES];  // where the sum of each goes
  alignas(64) float numbers_[LANES][GROUP];
};

}  // namespace trivet
