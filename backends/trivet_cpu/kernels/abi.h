// What Python sees: plain structs and functions, mirrored in `native_library.py`. Sizes are checked there.
#pragma once

#include <cstdint>

#include "adapters.h"
#include "attention_work.h"
#include "weights.h"

#pragma GCC visibility push(default)
extern "C" {

enum TrivetFormat : int32_t { TRIVET_FLOATS = 0, TRIVET_Q8_0 = 1, TRIVET_Q4_0 = 2, TRIVET_Q4_1 = 3, TRIVET_Q4_K = 4 };

// Rows of a weight file, and where their packed form goes (`weights.h`).
struct TrivetPack {
  const void* source;
  int64_t row_bytes;
  int32_t format;
  int32_t kind;
  int32_t rows;
  int32_t columns;
  void* data;
};

// A layer "x += attention(norm(x)); x += mlp(norm(x))".
struct TrivetLayer {
  trivet::Weight q, k, v, o, gate, up, down;  // `up.data` null: not gated
  trivet::Cache cache;
  const float* attention_norm;  // [padded hidden size]
  const float* mlp_norm;
  const float* q_norm;  // [head_dim] or null
  const float* k_norm;
  int32_t num_heads;
  int32_t window;  // 0: none
  int32_t rope;    // index into the model's; -1: none
  int32_t rope_dim;
  int32_t activation;  // 0 silu, 1 gelu, 2 gelu_tanh, 3 relu
  float scale;
  float qk_eps;
  int32_t pad;
  const trivet::AdaptedMatrix* adapted;  // [7] in the order of `AdaptedPart`, or null
};

// Rotary position embedding of one kind; position p turns pair i by p * frequencies[i].
struct TrivetRope {
  const float* frequencies;  // [dim / 2]
  float* table;              // buffer [T, dim]: factor * cosines of the pairs of a token, then the sines
  int32_t dim;
  float factor;
};

struct TrivetModel {
  const TrivetLayer* layers;
  const TrivetRope* ropes;
  int32_t num_layers;
  int32_t num_ropes;
  int32_t hidden_size;
  int32_t padded_hidden_size;
  int32_t qkv_stride;  // floats of a row of `qkv`
  int32_t pad;
  trivet::Weight embed, head;
  const float* norm;
  float eps, embed_scale, residual_scale, logits_scale;
  // Buffers of max_num_batched_tokens rows.
  float* x;    // [T, padded hidden size] the residual stream
  float* qkv;  // [T, qkv_stride]; attention's result takes the place of q
  int64_t* slots;  // [T] block * block_size + offset: where K and V of each token go
  trivet::Activations normed, attended, inner;
  trivet::AttentionSpace attention;
  char* scratch;  // [threads, trivet_scratch_bytes()]
  trivet::AdapterSpace adapters;
};

// One batch: flat tokens of S sequences (contract.Batch).
struct TrivetStep {
  int32_t num_tokens;
  int32_t num_seqs;
  int32_t* token_ids;              // [T] resolved, unless `trivet_post_forward` does that
  const int32_t* positions;        // [T]
  const int32_t* query_start_loc;  // [S + 1]
  const int32_t* seq_lens;         // [S]
  const int32_t* block_table;      // [S, table_stride]
  int64_t table_stride;
  // [S + 1] as `query_start_loc`, of each sequence's last tokens alone, where only their hidden states are wanted:
  // they then stand in the first rows of `x`. Null: all are.
  const int32_t* last_start_loc;
  const int32_t* adapters;  // [S] slot of each sequence's adapter, 0: none. Null: no sequence has one
};

// Some rows of contract.Sampling, [first_row, first_row + num_rows), and where their results go. All arrays
// but `logits` and `scratch` are of all rows of the step. Null where there is none.
struct TrivetSampling {
  const float* logits;  // [num_rows, stride]
  int64_t stride;
  float* scratch;  // [threads, 2, scratch_stride]
  int64_t scratch_stride;
  int32_t num_tokens;  // V
  int32_t num_rows;
  int32_t first_row;
  int32_t num_top;
  int32_t num_extra;
  int32_t num_masks;
  int64_t mask_stride;  // words of a mask
  const uint8_t* draws;
  const int32_t *target_ids, *top_k;
  const float *temperature, *top_p, *min_p, *uniform;
  const int32_t *extra_ids, *edit_start, *edit_ids, *mask_rows;
  const float *edit_mul, *edit_add;
  const uint32_t* mask_bits;
  int32_t* token_ids;
  uint8_t *is_finite, *refused;
  float* logprobs;
  int32_t *ranks, *top_ids;
  float *top_logprobs, *extra_logprobs;
};

// The newest token of each slot, which a step may leave and the next one read.
struct TrivetDraws {
  int32_t* newest;          // [slots]
  const int32_t* slots;     // [S] of the step
  const int32_t* row_seqs;  // [R] of the step; only where it draws
};

// What the host learns of a step on a stream, once it has waited for its last part.
struct TrivetProgress {
  int64_t started_ns, ended_ns;  // CLOCK_MONOTONIC
  int32_t status;                // 1: memory ran out
  int32_t pad;
};

// What returns a status is 1 where memory ran out, and has done nothing of use then; else 0. An exception must
// not pass into C.
void* trivet_pool_create(int32_t num_threads);  // null: the host allows no such number of threads
void trivet_pool_destroy(void* pool);
int32_t trivet_pool_crew_size(void* pool);  // threads that work now: fewer beside a busy program
void* trivet_stream_create(int32_t num_threads);  // null as above
void trivet_stream_destroy(void* stream);
void trivet_stream_wait(void* stream, int64_t number);  // of what was posted; this thread computes, too
void trivet_pack(void* pool, const TrivetPack* pack);
void trivet_unpack_row(const trivet::Weight* weight, int row, int num_columns, float* out);

// Run all layers; the final hidden states stay in `x`.
int32_t trivet_forward(void* pool, const TrivetModel* model, const TrivetStep* step);
// Logits [num_rows, stride] after the final norm of rows [R] of `x`.
void trivet_logits(void* pool, const TrivetModel* model, const int32_t* rows, int32_t num_rows, float* logits,
                   int64_t stride);

// The same on a stream, in the order of the calls; both return a number to wait for, 0 where memory ran out. The
// structs are copied, their arrays and `progress` stay until then. A token id of -1 becomes the newest of its slot.
int64_t trivet_post_forward(void* stream, const TrivetModel* model, const TrivetStep* step, const TrivetDraws* draws,
                            TrivetProgress* progress);
// Logits of rows [num_rows] of `x` into `sampling.logits`, then their sampling; drawn tokens become the newest.
int64_t trivet_post_sample(void* stream, const TrivetModel* model, const int32_t* rows,
                           const TrivetSampling* sampling, const TrivetDraws* draws, TrivetProgress* progress);

// One kernel by itself, for tests and for models that the step does not know. Rows are contiguous; `size` is a
// multiple of 16.
// out [T, columns] = scale * rows of the packed table.
void trivet_embed(void* pool, const trivet::Weight* weight, const int32_t* token_ids, int32_t num_tokens,
                  int32_t columns, float scale, float* out);
// out [R, size] = x / sqrt(mean(x^2) + eps) * weight.
void trivet_rms_norm(void* pool, const float* x, const float* weight, int32_t num_rows, int32_t size, float eps,
                     float* out);
// Turn x [T, num_heads, head_dim] in place; fills the table of `rope`, [T, dim].
void trivet_rope(void* pool, float* x, const int32_t* positions, const TrivetRope* rope, int32_t num_tokens,
                 int32_t num_heads, int32_t head_dim);
// out [R, size] = activation(gate) * up; `up` may be null.
void trivet_activate(void* pool, const float* gate, const float* up, int32_t num_rows, int32_t size, int32_t kind,
                     float* out);
void trivet_quantise(const trivet::Activations* out, const float* x, int32_t num_rows, int32_t columns);
void trivet_multiply(void* pool, const trivet::Weight* weight, const trivet::Activations* in, int32_t num_rows,
                     float* out, int64_t stride);
// Attention of `layer.rows` over its cache, in place; `num_partials` floats may be taken for split sequences.
int32_t trivet_attend_cache(void* pool, const trivet::LayerQueries* layer, const trivet::StepSequences* seqs,
                            int64_t num_partials);
void trivet_write_kv(const trivet::Cache* cache, int32_t head, int64_t slot, const float* key, const float* value);
// Norm, turn and store what `qkv` of the model holds, as the layer says, and attend; the result is in place of q
// and, if it has a form, in `attended`. Of the model it reads the layers, their ropes' tables, `qkv`, `slots`,
// `attention` and `scratch`.
int32_t trivet_attend(void* pool, const TrivetModel* model, const TrivetStep* step, int32_t layer);
int32_t trivet_sample(void* pool, const TrivetSampling* sampling);

int64_t trivet_scratch_bytes();
int64_t trivet_struct_bytes(int32_t which);
}
#pragma GCC visibility pop
