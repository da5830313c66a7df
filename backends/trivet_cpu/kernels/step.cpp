// One step of a dense decoder for all sequences of a batch: the phases of a layer, with a barrier after each.
//
// Reference: models/decoder.py with models/torch_ops.py. Test: tests/contract runs over this
// runner. A decode step reads every weight once; its FLOPs are 2 * parameters a token.
#include <algorithm>
#include <cstring>
#include <new>
#include <optional>

#include "abi.h"
#include "adapters.h"
#include "group_writer.h"
#include "pool.h"
#include "product.h"
#include "rows.h"
#include "scratch.h"

namespace trivet {
namespace {

// Rows of activations that one unit of a product covers: a multiple of what the kernels hold in registers
// (16 and 12), small enough that a chunk of 256 gives two threads and eight alike enough units. With tiles all
// rows of a chunk share the weights that a unit has unpacked.
constexpr int ROW_BLOCK = 96;

// From so many tokens a thread on, a thread computes the same tokens in every phase and reads all weights for
// them: the weights then pass by once a thread (of 256 tokens at 1 GB/s, of 32 at 5), but rows of activations stay
// in the cache of one core.
constexpr int MIN_OWN_TOKENS = 16;
constexpr int OWN_ROW_BLOCK = 64;

// Tokens whose lines a norm asks for ahead of their turn: each takes about 0.2 us, a line up to 0.35 (1 instead of
// 4: 2 % of a prompt's time, Zen 4 with neighbours at work).
constexpr int NORMS_AHEAD = 4;

// Up to so many tokens each thread computes the norms of all into rows of its own: that takes less than the
// barrier (0.4 us a token; 60 of 210 barriers of a step of 30 layers).
constexpr int MAX_REPEATED_NORMS = 4;

struct Work {
  Pool* pool;
  const TrivetModel* model;
  const TrivetStep* step;
  AttentionWork* attention;
  Work* last;  // the rows that go on once the last layer's keys are written; null: all
  const AdapterWork* adapters = nullptr;  // null: no token has one
};

// Asks for a line that is written soon and that another core has read: one by one, each would be waited for.
TRIVET_INLINE void own(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" ::"m"(*(const char*)line));
#else
  __builtin_prefetch(line, 1);
#endif
}

// The same for the integers of columns [first, last) of a row.
TRIVET_INLINE void own_groups(const Activations& out, int row, int first, int last) {
  if (out.groups)
    for (int column = first; column < last; column += GROUP) own(out.group(row, column));
}

// The rows of `thread` among those of all: 16, which is how they stand together.
Activations rows_of(Activations all, int thread) {
  const size_t offset = (size_t)thread * Activations::ROWS * all.columns;
  if (all.f32) all.f32 += offset;
  if (all.bf16) all.bf16 += offset;
  if (all.groups) all.groups += offset / GROUP;
  return all;
}

bool has_own_tokens(int num_tokens, int num_threads) {
  return num_threads > 1 && num_tokens >= MIN_OWN_TOKENS * num_threads && !is_tiled(num_tokens);
}

class Step {
 public:
  Step(Work& work, int thread)
      : pool_(*work.pool), thread_(thread), work_(work), m_(*work.model), s_(*work.step),
        repeats_norms_(s_.num_tokens <= MAX_REPEATED_NORMS),
        normed_(as_read(repeats_norms_ ? rows_of(m_.normed, thread) : m_.normed)), attended_(as_read(m_.attended)),
        inner_(as_read(m_.inner)),
        owns_tokens_(has_own_tokens(s_.num_tokens, pool_.crew_size())),
        row_block_(is_tiled(s_.num_tokens) ? MAX_ROW_BLOCK : owns_tokens_ ? own_row_block() : ROW_BLOCK),
        scratch_(scratch_of(m_, thread)) {
    scratch_.attention.unpacked = m_.attention.unpacked + thread * m_.attention.unpacked_stride;
  }

  void run() {
    embed();
    for (int i = 0; i + 1 < m_.num_layers; i++) layer(m_.layers[i]);
    const TrivetLayer& last = m_.layers[m_.num_layers - 1];
    if (!work_.last) return layer(last);
    write_keys(last);
    const TrivetStep& step = *work_.last->step;
    if (!step.num_tokens) return;
    for_units(pool_, thread_, 1, [&](int) { keep(step); });
    Step(*work_.last, thread_).finish(last);
  }

  // All K and V of the batch stand before any is read: contract, rule 2.
  void attend_layer(const TrivetLayer& layer) {
    rotate(layer, true, true);
    attention(layer);
  }

 private:
  Activations as_read(const Activations& rows) const {
    return of_step(rows, s_.num_tokens, work_.adapters != nullptr);
  }

  void layer(const TrivetLayer& layer) {
    norm_for(layer.attention_norm, layer, ADAPTED_Q, 3);
    product_qkv(layer, 0, 3);
    attend_layer(layer);
    mix_in(layer);
  }

  // The last layer, whose output is wanted of some tokens only: keys and values of all, then the rest for those.
  void write_keys(const TrivetLayer& layer) {
    norm_for(layer.attention_norm, layer, ADAPTED_K, 2);
    product_qkv(layer, 1, 3);
    rotate(layer, false, true);
  }

  void finish(const TrivetLayer& layer) {
    norm_for(layer.attention_norm, layer, ADAPTED_Q, 1);
    product_qkv(layer, 0, 1);
    rotate(layer, true, false);
    attention(layer);
    mix_in(layer);
  }

  // What the tokens of `last`, the last of each sequence, need of their own comes to the front.
  void keep(const TrivetStep& last) {
    for (int seq = 0; seq < last.num_seqs; seq++) {
      const int to = last.query_start_loc[seq], count = last.query_start_loc[seq + 1] - to;
      const int from = s_.query_start_loc[seq + 1] - count;
      const auto move = [&](float* rows, int width) {
        memmove(rows + (size_t)to * width, rows + (size_t)from * width, (size_t)count * width * sizeof *rows);
      };
      move(m_.x, m_.padded_hidden_size);
      for (int i = 0; i < m_.num_ropes; i++) move(m_.ropes[i].table, m_.ropes[i].dim);
    }
  }

  void mix_in(const TrivetLayer& layer) {
    add_product(layer, ADAPTED_O, layer.o, attended_);
    norm_for(layer.mlp_norm, layer, ADAPTED_GATE, layer.up.data ? 2 : 1);
    inner(layer);
    add_product(layer, ADAPTED_DOWN, layer.down, inner_);
  }

  void embed() {
    for_units(pool_, thread_, s_.num_tokens, [&](int token) {
      float* x = m_.x + (size_t)token * m_.padded_hidden_size;
      unpack_row(m_.embed, s_.token_ids[token], m_.hidden_size, x);
      for (int i = 0; i < m_.hidden_size; i++) x[i] *= m_.embed_scale;
      std::fill(x + m_.hidden_size, x + m_.padded_hidden_size, 0.0f);
      for (int i = 0; i < m_.num_ropes; i++)
        fill_rope(m_.ropes[i], s_.positions[token], m_.ropes[i].table + (size_t)token * m_.ropes[i].dim);
    });
  }

  void norm(const float* weight) {
    if (repeats_norms_) {
      if (!pool_.has_joined(thread_)) return;
      for (int token = 0; token < s_.num_tokens; token++) norm_of(token, weight);
      return;
    }
    for_units(pool_, thread_, s_.num_tokens, [&](int token) {
      own_groups(normed_, std::min(token + NORMS_AHEAD, s_.num_tokens - 1), 0, m_.padded_hidden_size);
      norm_of(token, weight);
    });
  }

  void norm_of(int token, const float* weight) {
    norm_row(m_.x + (size_t)token * m_.padded_hidden_size, weight, m_.hidden_size, m_.padded_hidden_size, m_.eps,
             normed_, token);
  }

  // Norms of all tokens, and what the adapters of `count` matrices from `part` on make of them first.
  void norm_for(const float* weight, const TrivetLayer& layer, int part, int count) {
    const bool was_here = pool_.has_joined(thread_);
    norm(weight);
    // Whoever has come since has no rows of its own yet.
    if (multiply_adapters(layer, part, count, normed_) && repeats_norms_ && !was_here) norm(weight);
  }

  // The adapters' A x, a phase; false: there is nothing to do for them, and no phase.
  bool multiply_adapters(const TrivetLayer& layer, int part, int count, const Activations& in) {
    if (!work_.adapters || !layer.adapted) return false;
    const AdapterWork& adapters = *work_.adapters;
    const AdaptedMatrix* matrices = layer.adapted + part;
    const int rank = adapters.largest_rank(matrices, count);
    if (!rank) return false;
    for_units(pool_, thread_, adapters.num_units(count, rank),
              [&](int unit) { adapters.multiply_a(matrices, count, rank, in.f32, unit); });
    return true;
  }

  // A unit of the base's product, and of its adapters' whose A x is the `low`-th.
  void multiply_with_adapters(const TrivetLayer& layer, int part, int low, const Product& p, int unit, int first,
                              int last) {
    multiply(p, unit, first, last);
    if (work_.adapters && layer.adapted && layer.adapted[part].a)
      work_.adapters->add_b(layer.adapted[part], low, p, unit, first, last);
  }

  // A thread's tokens in equal blocks.
  int own_row_block() const {
    const int tokens = (s_.num_tokens + pool_.crew_size() - 1) / pool_.crew_size();
    const int blocks = (tokens + OWN_ROW_BLOCK - 1) / OWN_ROW_BLOCK, rows = (tokens + blocks - 1) / blocks;
    return (rows + Activations::ROWS - 1) / Activations::ROWS * Activations::ROWS;
  }

  int num_row_blocks() const { return (s_.num_tokens + row_block_ - 1) / row_block_; }

  // A unit is one row block of 32 weight rows. Blocks of the same rows follow each other and find them in the
  // cache, unless threads have tokens of their own: then all weights follow each other for the same block.
  template <class Do>
  void for_blocks(int num_units, Do&& work) {
    const int blocks = num_row_blocks();
    for_units(pool_, thread_, num_units * blocks, [&](int i) {
      const int block = owns_tokens_ ? i / num_units : i % blocks, first = block * row_block_;
      work(owns_tokens_ ? i % num_units : i / blocks, first, std::min(first + row_block_, s_.num_tokens));
    });
  }

  // What a layer adds to the residual stream.
  void add_product(const TrivetLayer& layer, int part, const Weight& weight, const Activations& rows) {
    const Activations in = of_width(rows, weight);
    multiply_adapters(layer, part, 1, in);
    const Product p{&weight, &in, m_.x, m_.padded_hidden_size, 0, 0, true, m_.residual_scale, &scratch_.tiles};
    for_blocks(units_of(weight), [&](int unit, int first, int last) {
      multiply_with_adapters(layer, part, 0, p, unit, first, last);
    });
  }

  static int units_of(const Weight& weight) { return (weight.rows + UNIT_ROWS - 1) / UNIT_ROWS; }

  // Parts [begin, end) of q, k and v.
  void product_qkv(const TrivetLayer& layer, int begin, int end) {
    const Weight* parts[3] = {&layer.q, &layer.k, &layer.v};
    const int columns[3] = {0, layer.q.rows, layer.q.rows + layer.k.rows};
    int units[3], num_units = 0;
    for (int part = begin; part < end; part++) num_units += units[part] = units_of(*parts[part]);
    for_blocks(num_units, [&](int unit, int first, int last) {
      int part = begin;
      while (unit >= units[part]) unit -= units[part++];
      const Product p{parts[part], &normed_, m_.qkv + columns[part], m_.qkv_stride, 0, 0, false, 1.0f,
                      &scratch_.tiles};
      multiply_with_adapters(layer, ADAPTED_Q + part, part - begin, p, unit, first, last);
    });
  }

  void rotate(const TrivetLayer& layer, bool has_queries, bool has_keys) {
    for_units(pool_, thread_, s_.num_tokens, [&](int token) {
      const float* table =
          layer.rope < 0 ? nullptr : m_.ropes[layer.rope].table + (size_t)token * layer.rope_dim;
      if (has_queries) rotate_queries(layer, token, table);
      if (has_keys) write_keys(layer, token, table);
    });
  }

  void rotate_queries(const TrivetLayer& layer, int token, const float* table) {
    const int dim = layer.cache.head_dim;
    for (int head = 0; head < layer.num_heads; head++) {
      float* row = m_.qkv + (size_t)token * m_.qkv_stride + head * dim;
      if (layer.q_norm) norm_head(row, layer.q_norm, dim, layer.qk_eps);
      if (table) trivet::rotate(row, table, layer.rope_dim);
      for (int i = 0; i < dim; i++) row[i] *= layer.scale;
    }
  }

  void write_keys(const TrivetLayer& layer, int token, const float* table) {
    const Cache& cache = layer.cache;
    const int dim = cache.head_dim;
    float* k = m_.qkv + (size_t)token * m_.qkv_stride + layer.num_heads * dim;
    const float* v = k + cache.num_heads * dim;
    for (int head = 0; head < cache.num_heads; head++) {
      float* row = k + head * dim;
      if (layer.k_norm) norm_head(row, layer.k_norm, dim, layer.qk_eps);
      if (table) trivet::rotate(row, table, layer.rope_dim);
      write_kv(cache, head, m_.slots[token], row, v + head * dim);
    }
  }

  void attention(const TrivetLayer& layer) {
    const Cache& cache = layer.cache;
    const int width = layer.num_heads / cache.num_heads * cache.head_dim;
    const bool converts_later = width % GROUP != 0;
    const LayerQueries queries{&cache, layer.num_heads, layer.window, m_.qkv, m_.qkv_stride};
    for_units(pool_, thread_, work_.attention->num_units() * cache.num_heads, [&](int i) {
      const int number = i / cache.num_heads, head = i % cache.num_heads;
      const AttentionUnit& unit = work_.attention->unit(number);
      if (!converts_later)
        for (int token = unit.first; token < unit.first + unit.count; token++)
          own_groups(of_width(attended_, layer.o), token, head * width, (head + 1) * width);
      const bool is_complete = work_.attention->run(queries, number, head, scratch_.attention);
      if (is_complete && !converts_later)
        convert(layer, unit.first, unit.first + unit.count, head * width, (head + 1) * width);
    });
    if (converts_later)
      for_units(pool_, thread_, s_.num_tokens,
                [&](int token) { convert(layer, token, token + 1, 0, layer.num_heads * cache.head_dim); });
  }

  // Rows as they are multiplied with `weight`: layers may differ in width, and the buffer has the widest's.
  static Activations of_width(Activations rows, const Weight& weight) {
    rows.columns = weight.columns;
    return rows;
  }

  // Columns [first, last) of tokens [token, stop).
  void convert(const TrivetLayer& layer, int token, int stop, int first, int last) {
    GroupWriter writer(of_width(attended_, layer.o));
    for (; token < stop; token++) {
      const float* row = m_.qkv + (size_t)token * m_.qkv_stride;
      for (int i = first; i < last; i += GROUP)
        writer.add(token, i, load(row + i), i + LANES < last ? load(row + i + LANES) : broadcast(0));
    }
  }

  void inner(const TrivetLayer& layer) {
    const bool is_gated = layer.up.data != nullptr;
    const Activations inner = of_width(inner_, layer.down);
    for_blocks(units_of(layer.gate), [&](int unit, int first, int last) {
      Product p{&layer.gate, &normed_, scratch_.gate, UNIT_ROWS, first, unit * UNIT_ROWS, false, 1.0f,
                &scratch_.tiles};
      if (is_gated) p.next = unit_data(layer.up, unit);
      for (int row = first; row < last; row++) own_groups(inner, row, unit * UNIT_ROWS, (unit + 1) * UNIT_ROWS);
      multiply_with_adapters(layer, ADAPTED_GATE, 0, p, unit, first, last);
      if (is_gated) {
        p.weight = &layer.up;
        p.out = scratch_.up;
        p.next = unit_data(layer.gate, unit + 1);
        multiply_with_adapters(layer, ADAPTED_UP, 1, p, unit, first, last);
      }
      with_activation(layer.activation, [&](auto active) {
        GroupWriter writer(inner);
        for (int row = first; row < last; row++) {
          const float* gate = scratch_.gate + (row - first) * UNIT_ROWS;
          const float* up = scratch_.up + (row - first) * UNIT_ROWS;
          Floats low = active(load(gate)), high = active(load(gate + LANES));
          if (is_gated) {
            low = low * load(up);
            high = high * load(up + LANES);
          }
          writer.add(row, unit * UNIT_ROWS, low, high);
        }
      });
    });
  }

  Pool& pool_;
  const int thread_;
  Work& work_;
  const TrivetModel& m_;
  const TrivetStep& s_;
  const bool repeats_norms_;
  const Activations normed_, attended_, inner_;
  const bool owns_tokens_;
  const int row_block_;
  const TilesInUse in_use_;
  Scratch& scratch_;
};

AttentionWork attention_of(const TrivetModel& model, const TrivetStep& step, int num_threads) {
  HeadLimits limits;
  for (int i = 0; i < model.num_layers; i++) limits.include(model.layers[i].num_heads, model.layers[i].cache);
  const StepSequences seqs{step.num_seqs, step.query_start_loc, step.seq_lens, step.block_table,
                           step.table_stride};
  return AttentionWork(seqs, limits, num_threads, model.attention, has_own_tokens(step.num_tokens, num_threads));
}

// Null where no token has one.
const AdapterWork* adapters_of(std::optional<AdapterWork>& space, const TrivetModel& model, const TrivetStep& step,
                               int which) {
  if (!step.adapters) return nullptr;
  space.emplace(model.adapters, step.adapters, step.num_seqs, step.query_start_loc, which);
  return space->is_empty() ? nullptr : &*space;
}

void find_slots(const TrivetModel& model, const TrivetStep& step) {
  const int block_size = model.layers[0].cache.block_size;
  for (int seq = 0; seq < step.num_seqs; seq++) {
    const int32_t* table = step.block_table + seq * step.table_stride;
    for (int token = step.query_start_loc[seq]; token < step.query_start_loc[seq + 1]; token++) {
      const int position = step.positions[token];
      model.slots[token] = (int64_t)table[position / block_size] * block_size + position % block_size;
    }
  }
}

}  // namespace
}  // namespace trivet

using namespace trivet;

extern "C" {

int32_t trivet_forward(void* pool, const TrivetModel* model, const TrivetStep* step) try {
  const int crew_size = ((Pool*)pool)->crew_size();
  AttentionWork attention = attention_of(*model, *step, crew_size);
  Work work{(Pool*)pool, model, step, &attention, nullptr};
  find_slots(*model, *step);
  std::optional<AdapterWork> adapters, adapters_of_last;
  work.adapters = adapters_of(adapters, *model, *step, 0);
  if (!step->last_start_loc) {
    work.pool->run([](void* argument, int thread) { Step(*(Work*)argument, thread).run(); }, &work);
    return 0;
  }
  TrivetStep last = *step;
  last.query_start_loc = step->last_start_loc;
  last.num_tokens = last.query_start_loc[last.num_seqs];
  AttentionWork attention_of_last = attention_of(*model, last, crew_size);
  Work work_of_last{work.pool, model, &last, &attention_of_last, nullptr};
  work_of_last.adapters = adapters_of(adapters_of_last, *model, last, 1);
  work.last = &work_of_last;
  work.pool->run([](void* argument, int thread) { Step(*(Work*)argument, thread).run(); }, &work);
  return 0;
} catch (const std::bad_alloc&) {  // of `attention_of`: threads allocate nothing
  return 1;
}

int32_t trivet_attend(void* pool, const TrivetModel* model, const TrivetStep* step, int32_t layer) try {
  struct Job {
    Work work;
    int32_t layer;
  };
  AttentionWork attention = attention_of(*model, *step, ((Pool*)pool)->crew_size());
  Job job{{(Pool*)pool, model, step, &attention, nullptr}, layer};
  find_slots(*model, *step);
  job.work.pool->run(
      [](void* argument, int thread) {
        Job& job = *(Job*)argument;
        Step(job.work, thread).attend_layer(job.work.model->layers[job.layer]);
      },
      &job);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
}
