// From the rows of a weight file to packed tiles, and one row back for the embedding.
//
// Reference: weights/dequantize.py. Test: tests/backends/trivet_cpu/test_native_pack.py.
// Block layouts of GGUF: ggml-common.h of llama.cpp (block_q8_0, block_q4_0, block_q4_1, block_q4_K).
#include <algorithm>
#include <cstdlib>

#include "abi.h"
#include "pool.h"
#include "weights.h"

namespace trivet {
namespace {

uint16_t half_at(const uint8_t* bytes) {
  uint16_t r;
  memcpy(&r, bytes, 2);
  return r;
}

// A group of 32 numbers of one row before it is packed.
struct Group {
  uint8_t numbers[GROUP];  // Q8: number + 128; Q4: nibbles
  uint16_t scale;
  uint16_t minimum;
};

void group_of_floats(const float* x, Group& out) {
  float peak = 0;
  for (int i = 0; i < GROUP; i++) peak = std::max(peak, std::fabs(x[i]));
  out.scale = float_to_half(peak / 127.0f);
  const float scale = half_to_float(out.scale), inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int i = 0; i < GROUP; i++) {
    const long number = std::lrint(x[i] * inverse);
    out.numbers[i] = (uint8_t)(std::clamp(number, -127L, 127L) + 128);
  }
}

void group_of_q8_0(const uint8_t* block, Group& out) {
  out.scale = half_at(block);
  for (int i = 0; i < GROUP; i++) out.numbers[i] = block[2 + i] ^ 0x80;
}

void nibbles_of(const uint8_t* bytes, Group& out) {
  for (int i = 0; i < GROUP / 2; i++) {
    out.numbers[i] = bytes[i] & 15;
    out.numbers[i + GROUP / 2] = bytes[i] >> 4;
  }
}

void group_of_q4_0(const uint8_t* block, Group& out) {
  out.scale = half_at(block);
  out.minimum = float_to_half(-8.0f * half_to_float(out.scale));
  nibbles_of(block + 2, out);
}

void group_of_q4_1(const uint8_t* block, Group& out) {
  out.scale = half_at(block);
  out.minimum = half_at(block + 2);
  nibbles_of(block + 4, out);
}

// Eight groups share two half scales; each group has a 6-bit factor for either. The product is rounded to
// half precision, 5e-4 of itself.
void group_of_q4_k(const uint8_t* block, int index, Group& out) {
  const uint8_t* factors = block + 4;
  int factor, minimum;
  if (index < 4) {
    factor = factors[index] & 63;
    minimum = factors[index + 4] & 63;
  } else {
    factor = (factors[index + 4] & 15) | (factors[index - 4] >> 6) << 4;
    minimum = (factors[index + 4] >> 4) | (factors[index] >> 6) << 4;
  }
  out.scale = float_to_half(half_to_float(half_at(block)) * (float)factor);
  out.minimum = float_to_half(-half_to_float(half_at(block + 2)) * (float)minimum);
  const uint8_t* bytes = block + 16 + index / 2 * GROUP;
  for (int i = 0; i < GROUP; i++) out.numbers[i] = index % 2 ? bytes[i] >> 4 : bytes[i] & 15;
}

void read_group(const TrivetPack& p, int row, int group, Group& out) {
  memset(&out, 0, sizeof out);
  if (p.kind == Q8) memset(out.numbers, 128, GROUP);
  if (row >= p.rows || group * GROUP >= p.columns) return;
  const uint8_t* source = (const uint8_t*)p.source + (size_t)row * p.row_bytes;
  switch (p.format) {
    case TRIVET_Q8_0: return group_of_q8_0(source + (size_t)group * 34, out);
    case TRIVET_Q4_0: return group_of_q4_0(source + (size_t)group * 18, out);
    case TRIVET_Q4_1: return group_of_q4_1(source + (size_t)group * 20, out);
    case TRIVET_Q4_K: return group_of_q4_k(source + (size_t)(group / 8) * 144, group % 8, out);
    default: break;
  }
  float x[GROUP] = {};
  const int count = std::min(GROUP, p.columns - group * GROUP);
  memcpy(x, (const float*)source + (size_t)group * GROUP, count * sizeof(float));
  group_of_floats(x, out);
}

void pack_bytes_tile(const TrivetPack& p, int tile, int padded_columns) {
  const int groups = padded_columns / GROUP;
  for (int g = 0; g < groups; g++) {
    uint8_t* data = (uint8_t*)p.data + ((size_t)tile * groups + g) * group_bytes(p.kind);
    uint16_t* halves = (uint16_t*)(data + number_bytes(p.kind));
    for (int lane = 0; lane < LANES; lane++) {
      Group group;
      read_group(p, tile * TILE_ROWS + lane, g, group);
      halves[lane] = group.scale;
      if (p.kind == Q4) halves[LANES + lane] = group.minimum;
      for (int i = 0; i < (p.kind == Q8 ? GROUP : GROUP / 2); i++) {
        uint8_t number = group.numbers[i];
        if (p.kind == Q4) number |= group.numbers[i + GROUP / 2] << 4;
        data[i / 4 * 64 + lane * 4 + i % 4] = number;
      }
    }
  }
}

void pack_floats_tile(const TrivetPack& p, int tile, int padded_columns) {
  for (int lane = 0; lane < LANES; lane++) {
    const int row = tile * TILE_ROWS + lane;
    const float* source = row < p.rows ? (const float*)((const uint8_t*)p.source + (size_t)row * p.row_bytes) : nullptr;
    for (int k = 0; k < padded_columns; k++) {
      const float value = source && k < p.columns ? source[k] : 0.0f;
      if (p.kind == F32)
        ((float*)p.data)[((size_t)tile * padded_columns + k) * LANES + lane] = value;
      else
        ((BFloat*)p.data)[(size_t)tile * padded_columns * LANES + k / 2 * 32 + lane * 2 + k % 2] =
            to_bfloat(value);
    }
  }
}

int padded(int size) { return (size + GROUP - 1) / GROUP * GROUP; }

}  // namespace

void unpack_row(const Weight& w, int row, int num_columns, float* out) {
  const int tile = row / TILE_ROWS, lane = row % TILE_ROWS, groups = w.columns / GROUP;
  for (int k = 0; k < num_columns; k++) {
    if (w.kind == F32) {
      out[k] = ((const float*)w.data)[((size_t)tile * w.columns + k) * LANES + lane];
    } else if (w.kind == BF16) {
      out[k] = to_float(((const BFloat*)w.data)[(size_t)tile * w.columns * LANES + k / 2 * 32 + lane * 2 + k % 2]);
    } else {
      const uint8_t* data = w.data + ((size_t)tile * groups + k / GROUP) * group_bytes(w.kind);
      const uint16_t* halves = (const uint16_t*)(data + number_bytes(w.kind));
      const int i = k % GROUP;
      const float scale = half_to_float(halves[lane]);
      if (w.kind == Q8) {
        out[k] = scale * (float)(data[i / 4 * 64 + lane * 4 + i % 4] - 128);
      } else {
        const int j = i % 16, byte = data[j / 4 * 64 + lane * 4 + j % 4];
        const int nibble = i < 16 ? byte & 15 : byte >> 4;
        out[k] = scale * (float)nibble + half_to_float(halves[LANES + lane]);
      }
    }
  }
}

}  // namespace trivet

using namespace trivet;

extern "C" void trivet_pack(void* pool, const TrivetPack* pack) {
  struct Job {
    const TrivetPack* pack;
    Pool* pool;
  } job{pack, (Pool*)pool};
  job.pool->run(
      [](void* argument, int thread) {
        const Job& job = *(Job*)argument;
        const TrivetPack& p = *job.pack;
        const int columns = padded(p.columns), tiles = padded(p.rows) / TILE_ROWS;
        for (int tile; (tile = job.pool->next_unit(thread)) < tiles;)
          p.kind == F32 || p.kind == BF16 ? pack_floats_tile(p, tile, columns) : pack_bytes_tile(p, tile, columns);
      },
      &job);
}

extern "C" void trivet_unpack_row(const Weight* weight, int row, int num_columns, float* out) {
  unpack_row(*weight, row, num_columns, out);
}
