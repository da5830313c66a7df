// Logits of some rows of a step's hidden states: final norm and head.
//
// Reference: models/decoder.py, `logits`. Test: tests/contract runs over this runner.
#include "abi.h"
#include "pool.h"
#include "rows.h"
#include "scratch.h"

namespace trivet {
namespace {

struct Work {
  Pool* pool;
  const TrivetModel* model;
  const int32_t* rows;
  int num_rows;
  float* logits;
  int64_t stride;
};

void run(void* argument, int thread) {
  const Work& work = *(const Work*)argument;
  const TrivetModel& m = *work.model;
  const Activations normed = of_step(m.normed, work.num_rows);
  const TilesInUse in_use;
  for_units(*work.pool, thread, work.num_rows, [&](int row) {
    norm_row(m.x + (size_t)work.rows[row] * m.padded_hidden_size, m.norm, m.hidden_size, m.padded_hidden_size,
             m.eps, normed, row);
  });
  const Product p{&m.head, &normed, work.logits, (int)work.stride, 0, 0, false, m.logits_scale,
                  &scratch_of(m, thread).tiles};
  const int units = (m.head.rows + UNIT_ROWS - 1) / UNIT_ROWS;
  for (int first, last; work.pool->take(thread, units, first, last);)
    for (int unit = first; unit < last; unit++) multiply(p, unit, 0, work.num_rows);
}

}  // namespace
}  // namespace trivet

extern "C" void trivet_logits(void* pool, const TrivetModel* model, const int32_t* rows, int32_t num_rows,
                              float* logits, int64_t stride) {
  trivet::Work work{(trivet::Pool*)pool, model, rows, num_rows, logits, stride};
  work.pool->run(trivet::run, &work);
}
