// How many threads of a pool work: all of them, or fewer while others hold the cores.
//
// A step waits at every barrier for its slowest thread. A thread that shares its core with another program is
// away for whole slices of the scheduler (about 3 ms), and all others with it: beside one busy program two
// threads took 17 ms for a step that one thread does in 5 (2-core Zen 4 VM). So the time in which threads were
// kept from their cores is counted, and while it is more than one thread gives, one thread fewer works. A short
// absence, as for a web server that reads a request, is no busy program: it is weighed over a long window.
#pragma once

#include <algorithm>
#include <cstdint>

namespace trivet {

// Times are in nanoseconds. Pure: no clock is read here.
class Crew {
 public:
  static constexpr int64_t WINDOW = 100'000'000;           // of work, before it is judged
  static constexpr int64_t FIRST_PATIENCE = 200'000'000;   // until one more is tried again
  static constexpr int64_t MAX_PATIENCE = 3'200'000'000;   // doubled to this while every trial fails

  explicit Crew(int num_threads) : most_(num_threads), size_(num_threads) {}

  int size() const { return size_; }

  // A run took `wall` and ended at `now`; `lost` is the sum over its threads of the time without a core.
  void note(int64_t now, int64_t wall, int64_t lost) {
    wall_ += wall;
    lost_ += lost;
    if (wall_ < WINDOW) return;
    // n threads that stand still for a share s of the time do n (1 - s); n - 1 that never do are better
    // where s > 1 / n.
    const bool is_crowded = size_ > 1 && lost_ * size_ > wall_;
    wall_ = lost_ = 0;
    if (is_crowded) {
      if (is_trial_) patience_ = std::min(2 * patience_, MAX_PATIENCE);
      size_--;
      is_trial_ = false;
      next_trial_ = now + patience_;
    } else if (is_trial_) {
      is_trial_ = false;
      patience_ = FIRST_PATIENCE;
      next_trial_ = now;
    }
    if (size_ < most_ && now >= next_trial_) {
      size_++;
      is_trial_ = true;
    }
  }

 private:
  const int most_;
  int size_;
  bool is_trial_ = false;  // the newest thread has not stood a window yet
  int64_t wall_ = 0, lost_ = 0;
  int64_t patience_ = FIRST_PATIENCE, next_trial_ = 0;
};

}  // namespace trivet
