// The sampler in one pass over each row: raw logprobs, edits, masks, temperature, filters, draw or verify.
//
// Reference: engine/sampler.py, step by step the same; its sums are in double as here. Test:
// tests/backends/trivet_cpu/test_native_sampler.py. A greedy row reads its logits twice (2 * 4 * V bytes, from
// the cache where the head has just left them); a drawn row makes one more row of weights, in which the blocks
// that a filter leaves nothing of are skipped.
#include <algorithm>
#include <atomic>
#include <limits>
#include <new>
#include <vector>

#include "abi.h"
#include "pool.h"

namespace trivet {
namespace {

constexpr float LOWEST = -std::numeric_limits<float>::infinity();
constexpr int CHUNK = 512;                            // tokens of one partial sum
constexpr int BLOCK = 64;                             // tokens whose largest logit is known; divides CHUNK
constexpr float DEPTHS[] = {8.0f, 16.0f, -LOWEST};  // nats below the largest in which likely tokens are sought

struct Peak {
  float value;
  int id;          // the lowest among equals
  bool is_finite;  // every number
};

Peak peak_of(const float* x, int size) {
  Floats peaks = broadcast(LOWEST), poison = broadcast(0);
  int i = 0;
  for (; i + LANES <= size; i += LANES) {
    const Floats v = load(x + i);
    peaks = maximum(v, peaks);
    poison = fma(v, broadcast(0), poison);  // NaN and Inf times 0 are NaN
  }
  float value = largest(peaks), bad = sum(poison);
  for (; i < size; i++) {
    value = std::max(value, x[i]);
    bad += x[i] * 0.0f;
  }
  int id = 0;
  while (id + LANES <= size && largest(load(x + id)) < value) id += LANES;
  while (id < size - 1 && !(x[id] >= value)) id++;
  return {value, id, bad == 0};
}

// The sum of e^(x[i] - peak), partial sums in float.
double mass_of(const float* x, int size, float peak) {
  double total = 0;
  for (int start = 0; start < size; start += CHUNK) {
    const int stop = std::min(start + CHUNK, size);
    Floats part = broadcast(0);
    int i = start;
    for (; i + LANES <= stop; i += LANES) part = part + exponential(load(x + i) - broadcast(peak));
    total += sum(part);
    for (; i < stop; i++) total += std::exp(x[i] - peak);
  }
  return total;
}

int count_above(const float* x, int size, float value) {
  int count = 0;
  for (int i = 0; i < size; i++) count += x[i] > value;
  return count;
}

class Row {
 public:
  Row(const TrivetSampling& s, int piece_row, float* scratch)
      : s_(s), row_(s.first_row + piece_row), size_(s.num_tokens), raw_(s.logits + piece_row * s.stride),
        weights_(scratch), edited_(scratch + s.scratch_stride) {}

  void run() {
    Peak raw = peak_of(raw_, size_);
    bool is_finite = raw.is_finite;
    if (!is_finite) {
      std::fill_n(weights_, size_, 0.0f);
      raw_ = weights_;
      raw = {0, 0, true};
    }
    const float* edited = raw_;
    Peak best = raw;
    if (edit()) {
      edited = edited_;
      best = peak_of(edited, size_);
      is_finite = is_finite && std::isfinite(best.value);
    }
    // Scores come first: a drawn row overwrites the weights, in which a bad row's zeros stand.
    const double log_sum = raw.value + std::log(mass_of(raw_, size_, raw.value));
    const int target = s_.target_ids[row_];
    int token = best.id;
    if (!is_finite)
      token = 0;
    else if (s_.draws[row_] && s_.temperature[row_] > 0)
      token = draw(edited, best, target);
    score(raw, (float)log_sum, target >= 0 ? target : token, is_finite);
    s_.token_ids[row_] = token;
    s_.is_finite[row_] = is_finite;
    s_.refused[row_] = !is_finite || (target >= 0 && token != target);
  }

 private:
  // Sparse edits, then the mask; true if the row has either.
  bool edit() {
    const int first = s_.edit_start ? s_.edit_start[row_] : 0, last = s_.edit_start ? s_.edit_start[row_ + 1] : 0;
    const uint32_t* mask = nullptr;
    if (s_.num_masks) {
      const int32_t* end = s_.mask_rows + s_.num_masks;
      const int32_t* found = std::lower_bound(s_.mask_rows, end, row_);
      if (found != end && *found == row_) mask = s_.mask_bits + (found - s_.mask_rows) * s_.mask_stride;
    }
    if (first == last && !mask) return false;
    std::copy_n(raw_, size_, edited_);
    for (int i = first; i < last; i++) {
      float& x = edited_[s_.edit_ids[i]];
      x = (x > 0 ? x / s_.edit_mul[i] : x * s_.edit_mul[i]) + s_.edit_add[i];
    }
    if (mask)
      for (int i = 0; i < size_; i++)
        if (!(mask[i / 32] >> (i % 32) & 1)) edited_[i] = LOWEST;
    return true;
  }

  int draw(const float* edited, const Peak& best, int target) {
    parts_.resize((size_ + CHUNK - 1) / CHUNK);
    peaks_.resize((size_ + BLOCK - 1) / BLOCK);
    // The mass of all tokens is what top_p is a part of; top_k first needs that of its own.
    const bool needs_mass = s_.top_p[row_] < 1 && num_kept() == size_;
    for (int i = 0; i < size_; i += BLOCK) peaks_[i / BLOCK] = temper(i, edited, best.value, needs_mass);
    floor_ = floor();
    for (int i = 0; i < size_; i += BLOCK)
      if (!is_cut(i)) weigh(i);
    for (size_t chunk = 0; chunk < parts_.size(); chunk++) parts_[chunk] = sum_of(chunk);
    if (target >= 0) {
      double total = 0;
      for (const double part : parts_) total += part;
      if (s_.uniform[2 * row_ + 1] < weight_of(target) / total) return target;
      weights_[target] = 0;  // p without t
      parts_[target / CHUNK] = sum_of(target / CHUNK);
    }
    return draw_in_order();
  }

  // A filter leaves nothing of the block in which this token stands: its weights are never written.
  bool is_cut(int token) const { return peaks_[token / BLOCK] < floor_; }
  float weight_of(int token) const { return is_cut(token) ? 0.0f : weights_[token]; }

  int num_kept() const {
    const int wanted = s_.top_k[row_];
    return wanted > 0 && wanted < size_ ? wanted : size_;
  }

  int end_of(size_t chunk) const { return std::min((int)(chunk + 1) * CHUNK, size_); }

  // Logits of a block relative to the largest of the row, divided by the temperature; returns the largest, and
  // adds e^logit of each to `mass_` where that is needed.
  float temper(int i, const float* edited, float best, bool needs_mass) {
    const float temperature = s_.temperature[row_];
    const int stop = std::min(i + BLOCK, size_);
    Floats peaks = broadcast(LOWEST), part = broadcast(0);
    for (; i + LANES <= stop; i += LANES) {
      const Floats relative = (load(edited + i) - broadcast(best)) / broadcast(temperature);
      store(weights_ + i, relative);
      peaks = maximum(relative, peaks);
      if (needs_mass) part = part + exponential(relative);
    }
    if (needs_mass) mass_ += sum(part);
    float peak = largest(peaks);
    for (; i < stop; i++) {
      peak = std::max(peak, weights_[i] = (edited[i] - best) / temperature);
      if (needs_mass) mass_ += std::exp(weights_[i]);
    }
    return peak;
  }

  // Tempered logits of a block to probabilities up to a factor.
  void weigh(int i) {
    const int stop = std::min(i + BLOCK, size_);
    for (; i + LANES <= stop; i += LANES) {
      const Floats relative = load(weights_ + i);
      store(weights_ + i, select(less(relative, broadcast(floor_)), broadcast(0), exponential(relative)));
    }
    for (; i < stop; i++) weights_[i] = weights_[i] < floor_ ? 0.0f : std::exp(weights_[i]);
  }

  double sum_of(size_t chunk) const {
    double total = 0;
    for (int i = (int)chunk * CHUNK; i < end_of(chunk); i += BLOCK) {
      if (is_cut(i)) continue;
      for (int token = i; token < std::min(i + BLOCK, size_); token++) total += weights_[token];
    }
    return total;
  }

  // The lowest tempered logit that top_k, top_p and min_p, in this order, leave; equals stay together.
  float floor() const {
    const float top_p = s_.top_p[row_], min_p = s_.min_p[row_];
    float floor = min_p > 0 ? std::log(min_p) : LOWEST;
    const int count = num_kept();
    if (count == size_ && top_p >= 1) return floor;
    double needed = top_p * mass_;
    std::vector<float> values;
    for (const float depth : DEPTHS) {
      values.clear();
      for (int i = 0; i < size_; i += BLOCK) {
        if (peaks_[i / BLOCK] < -depth) continue;
        for (int token = i; token < std::min(i + BLOCK, size_); token++)
          if (weights_[token] >= -depth) values.push_back(weights_[token]);
      }
      if (count < size_ ? (int)values.size() >= count : sum_of_powers(values) >= needed) break;
    }
    std::sort(values.begin(), values.end(), std::greater<float>());
    if (count < size_) {
      const float least = values[count - 1];
      floor = std::max(floor, least);
      while (values.back() < least) values.pop_back();
      needed = top_p * sum_of_powers(values);
    }
    if (top_p < 1) {
      double mass = 0;
      size_t last = 0;
      for (; last < values.size() - 1; last++)
        if ((mass += std::exp(values[last])) >= needed) break;
      floor = std::max(floor, values[last]);
    }
    return floor;
  }

  static double sum_of_powers(const std::vector<float>& values) {
    double mass = 0;
    for (const float value : values) mass += std::exp(value);
    return mass;
  }

  // The first token, in vocabulary order, whose cumulative probability exceeds the uniform number.
  int draw_in_order() const {
    double total = 0;
    for (const double part : parts_) total += part;
    const double wanted = s_.uniform[2 * row_] * total;
    double mass = 0;
    size_t chunk = 0;
    while (chunk + 1 < parts_.size() && mass + parts_[chunk] <= wanted) mass += parts_[chunk++];
    // Sums may round differently: then the last token with a probability, of this chunk or an earlier one.
    int last = 0;
    for (int i = (int)chunk * CHUNK; i < end_of(chunk); i++) {
      const float weight = weight_of(i);
      if (weight == 0) continue;
      last = i;
      if ((mass += weight) > wanted) return i;
    }
    if (last > 0 || weight_of(0) > 0) return last;
    for (last = end_of(chunk) - 1; last > 0 && weight_of(last) == 0;) last--;
    return last;
  }

  void score(const Peak& raw, float log_sum, int token, bool is_finite) {
    const float chosen = raw_[token];
    s_.logprobs[row_] = is_finite ? chosen - log_sum : std::numeric_limits<float>::quiet_NaN();
    s_.ranks[row_] = chosen == raw.value ? 1 : 1 + count_above(raw_, size_, chosen);
    for (int i = 0; i < s_.num_extra; i++) {
      const size_t at = (size_t)row_ * s_.num_extra + i;
      s_.extra_logprobs[at] = raw_[s_.extra_ids[at]] - log_sum;
    }
    if (s_.num_top) top(raw, log_sum);
  }

  // The most likely tokens, largest first, the lower id among equals.
  void top(const Peak& raw, float log_sum) {
    std::vector<int32_t> ids;
    for (const float depth : DEPTHS) {
      ids.clear();
      for (int i = 0; i < size_; i++)
        if (raw_[i] >= raw.value - depth) ids.push_back(i);
      if ((int)ids.size() >= s_.num_top) break;
    }
    std::partial_sort(ids.begin(), ids.begin() + s_.num_top, ids.end(), [this](int32_t a, int32_t b) {
      return raw_[a] != raw_[b] ? raw_[a] > raw_[b] : a < b;
    });
    for (int i = 0; i < s_.num_top; i++) {
      s_.top_ids[(size_t)row_ * s_.num_top + i] = ids[i];
      s_.top_logprobs[(size_t)row_ * s_.num_top + i] = raw_[ids[i]] - log_sum;
    }
  }

  const TrivetSampling& s_;
  const int row_, size_;
  const float* raw_;
  float* weights_;
  float* edited_;
  std::vector<float> peaks_;   // the largest tempered logit of each block
  std::vector<double> parts_;  // sums of the weights of each chunk
  double mass_ = 0;            // of all tokens, where it is needed
  float floor_ = LOWEST;       // tempered logits below it have no weight
};

}  // namespace
}  // namespace trivet

using namespace trivet;

extern "C" int32_t trivet_sample(void* pool, const TrivetSampling* sampling) {
  struct Job {
    Pool* pool;
    const TrivetSampling* sampling;
    std::atomic<int32_t> status{0};
  } job{(Pool*)pool, sampling};
  job.pool->run(
      [](void* argument, int thread) {
        Job& job = *(Job*)argument;
        const TrivetSampling& s = *job.sampling;
        float* scratch = s.scratch + (size_t)thread * 2 * s.scratch_stride;
        try {
          for (int row; (row = job.pool->next_unit(thread)) < s.num_rows;) Row(s, row, scratch).run();
        } catch (const std::bad_alloc&) {
          job.status = 1;
        }
      },
      &job);
  return job.status;
}
