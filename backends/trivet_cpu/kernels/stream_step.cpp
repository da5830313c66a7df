// The parts of a step on a stream. Reference: the same parts one by one. Test: tests/contract runs over this runner.
#include <ctime>
#include <new>

#include "abi.h"
#include "stream.h"

namespace trivet {
namespace {

constexpr int32_t ON_DEVICE = -1;  // contract.ON_DEVICE

int64_t nanoseconds() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

void resolve(const TrivetStep& step, const TrivetDraws& draws) {
  for (int seq = 0; seq < step.num_seqs; seq++)
    for (int token = step.query_start_loc[seq]; token < step.query_start_loc[seq + 1]; token++)
      if (step.token_ids[token] == ON_DEVICE) step.token_ids[token] = draws.newest[draws.slots[seq]];
}

// The last drawn token that counts becomes the newest of its slot: those behind a refused target do not.
void keep(const TrivetSampling& s, const TrivetDraws& draws) {
  int refused = -1;  // sequence
  int row = s.first_row;
  while (row > 0 && draws.row_seqs[row - 1] == draws.row_seqs[row]) row--;  // its rows in pieces before this one
  for (; row < s.first_row + s.num_rows; row++) {
    const int seq = draws.row_seqs[row];
    if (!s.draws[row] || seq == refused) continue;
    draws.newest[draws.slots[seq]] = s.token_ids[row];
    if (s.refused[row]) refused = seq;
  }
}

}  // namespace
}  // namespace trivet

using namespace trivet;

extern "C" {

int64_t trivet_post_forward(void* stream, const TrivetModel* model, const TrivetStep* step, const TrivetDraws* draws,
                            TrivetProgress* progress) try {
  return ((Stream*)stream)->post([=, step = *step, draws = *draws](Pool& pool) {
    progress->started_ns = nanoseconds();
    resolve(step, draws);
    progress->status |= trivet_forward(&pool, model, &step);
    progress->ended_ns = nanoseconds();
  });
} catch (const std::bad_alloc&) {
  return 0;
}

int64_t trivet_post_sample(void* stream, const TrivetModel* model, const int32_t* rows,
                           const TrivetSampling* sampling, const TrivetDraws* draws, TrivetProgress* progress) try {
  return ((Stream*)stream)->post([=, sampling = *sampling, draws = *draws](Pool& pool) {
    trivet_logits(&pool, model, rows, sampling.num_rows, (float*)sampling.logits, sampling.stride);
    progress->status |= trivet_sample(&pool, &sampling);
    if (!progress->status) keep(sampling, draws);
    progress->ended_ns = nanoseconds();
  });
} catch (const std::bad_alloc&) {
  return 0;
}
}
