// One kernel by itself, over plain arrays: for tests, and for models that the step does not know.
//
// Reference: models/torch_ops.py, op by op. Test: tests/backends/trivet_cpu/test_native_functions.py. Each reads
// and writes every row once.
#include <algorithm>

#include "abi.h"
#include "pool.h"
#include "product.h"
#include "rows.h"

namespace trivet {
namespace {

// `work(row)` for each of `num_rows`, by all threads of the pool.
template <class Do>
void for_rows(void* pool, int num_rows, const Do& work) {
  struct Job {
    Pool* pool;
    int num_rows;
    const Do& work;
  } job{(Pool*)pool, num_rows, work};
  job.pool->run(
      [](void* argument, int thread) {
        const Job& job = *(Job*)argument;
        for (int first, last; job.pool->take(thread, job.num_rows, first, last);)
          for (int row = first; row < last; row++) job.work(row);
      },
      &job);
}

}  // namespace
}  // namespace trivet

using namespace trivet;

extern "C" {

void trivet_embed(void* pool, const Weight* weight, const int32_t* token_ids, int32_t num_tokens, int32_t columns,
                  float scale, float* out) {
  for_rows(pool, num_tokens, [&](int token) {
    float* row = out + (size_t)token * columns;
    unpack_row(*weight, token_ids[token], columns, row);
    for (int i = 0; i < columns; i++) row[i] *= scale;
  });
}

void trivet_rms_norm(void* pool, const float* x, const float* weight, int32_t num_rows, int32_t size, float eps,
                     float* out) {
  for_rows(pool, num_rows, [&](int row) {
    std::copy_n(x + (size_t)row * size, size, out + (size_t)row * size);
    norm_head(out + (size_t)row * size, weight, size, eps);
  });
}

void trivet_rope(void* pool, float* x, const int32_t* positions, const TrivetRope* rope, int32_t num_tokens,
                 int32_t num_heads, int32_t head_dim) {
  for_rows(pool, num_tokens, [&](int token) {
    float* table = rope->table + (size_t)token * rope->dim;
    fill_rope(*rope, positions[token], table);
    for (int head = 0; head < num_heads; head++)
      rotate(x + ((size_t)token * num_heads + head) * head_dim, table, rope->dim);
  });
}

void trivet_activate(void* pool, const float* gate, const float* up, int32_t num_rows, int32_t size, int32_t kind,
                     float* out) {
  for_rows(pool, num_rows, [&](int row) {
    const size_t at = (size_t)row * size;
    with_activation(kind, [&](auto active) {
      for (int i = 0; i < size; i += LANES) {
        const Floats activated = active(load(gate + at + i));
        store(out + at + i, up ? activated * load(up + at + i) : activated);
      }
    });
  });
}

void trivet_quantise(const Activations* out, const float* x, int32_t num_rows, int32_t columns) {
  GroupWriter writer(*out);
  for (int row = 0; row < num_rows; row++)
    for (int i = 0; i < out->columns; i += GROUP) {
      float group[GROUP] = {};
      if (i < columns)
        memcpy(group, x + (size_t)row * columns + i, std::min(GROUP, columns - i) * sizeof(float));
      writer.add(row, i, load(group), load(group + LANES));
    }
}

void trivet_multiply(void* pool, const Weight* weight, const Activations* in, int32_t num_rows, float* out,
                     int64_t stride) {
  struct Job {
    Pool* pool;
    Product product;
    int num_rows;
  } job{(Pool*)pool, {weight, in, out, (int)stride, 0, 0, false, 1.0f, nullptr}, num_rows};
  job.pool->run(
      [](void* argument, int thread) {
        const Job& job = *(Job*)argument;
        const int units = (job.product.weight->rows + UNIT_ROWS - 1) / UNIT_ROWS;
        const TilesInUse in_use;
        TileScratch scratch;
        Product product = job.product;
        product.tiles = &scratch;
        for (int unit; (unit = job.pool->next_unit(thread)) < units;) multiply(product, unit, 0, job.num_rows);
      },
      &job);
}

void trivet_write_kv(const Cache* cache, int32_t head, int64_t slot, const float* key, const float* value) {
  write_kv(*cache, head, slot, key, value);
}
}
