// Threads that work together on one step: the caller and its helpers, with barriers between phases.
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>

#include "crew.h"

namespace trivet {

// In a loop that waits.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Work of a phase is taken from counters: with fixed shares one preempted thread would hold up all others
// at every barrier. Nobody waits for a helper that has not come yet, because another program has its core: it
// joins at the phase that it finds. (One stream beside its web server, which has a core for half a millisecond of
// each token, is 4 % faster by that; 2 cores of a Zen 4.) Waiting spins for a bounded time and then sleeps.
class Pool {
 public:
  typedef void (*Task)(void* argument, int thread);

  // `has_guest`: the last of the threads is whoever calls `help`; with one thread it only waits.
  // Throws std::system_error where the host allows no such number.
  explicit Pool(int num_threads, bool has_guest = false);
  ~Pool();  // no task runs

  // Run `task` in the caller (thread 0) and in every thread of the crew that comes in time, and return when all
  // of these have returned. A second caller waits for the first; a task that calls it ends the process.
  void run(Task task, void* argument);

  // Take part in the tasks that run until `done` is `wanted` or more. One guest at a time; whoever counts `done`
  // up says so by `call_guest`.
  void help(const std::atomic<int64_t>& done, int64_t wanted);
  void call_guest() { call(berths_[num_threads_ - 1]); }

  // Wait until every thread that has joined the task is here; then the unit counter starts again at 0.
  void barrier(int thread) { pass(thread, false); }

  // False in the phases that were over when the thread joined: it goes through them and has nothing to do.
  bool has_joined(int thread) const { return members_[thread].num_missed == 0; }

  // The next unit of the current phase; at or past the phase's number there is none left.
  int next_unit(int thread) { return has_joined(thread) ? unit_.fetch_add(1, std::memory_order_relaxed) : INT_MAX; }

  // The next units [first, last) of the phase's `num_units`; false: there is none left. Each thread begins with
  // an equal part of its own, the same in every phase of so many units, and then helps the others with theirs:
  // what a core writes in one phase it has in its cache when it writes it again, while a line that another core
  // holds costs up to 0.35 us (two cores of a Zen 4 that share no cache). Shares shrink towards a part's end
  // (guided self-scheduling, Polychronopoulos and Kuck 1987), so that little of it waits for a slow owner.
  bool take(int thread, int num_units, int& first, int& last) {
    if (!has_joined(thread)) return false;
    const uint64_t phase = phase_.load(std::memory_order_relaxed);
    const int crew_size = crew_size_.load(std::memory_order_relaxed);
    for (int i = 0; i < crew_size; i++) {
      const int owner = (thread + i) % crew_size;
      const int start = start_of(owner, crew_size, num_units);
      const int size = start_of(owner + 1, crew_size, num_units) - start;
      if (!take_of(parts_[owner], phase, size, crew_size, first, last)) continue;
      first += start;
      last += start;
      return true;
    }
    return false;
  }

  int num_threads() const { return num_threads_; }
  int crew_size() const { return crew_.size(); }  // of the next run

 private:
  static constexpr int SHARES = 4;  // a share is this part of what is left

  // How many units of a thread's part are taken, below the number of the phase in which they were: a counter of
  // an earlier phase stands for 0, so that nobody has to reset those of others.
  struct alignas(64) Part {
    std::atomic<uint64_t> taken{0};
  };

  // What a thread knows of the running task; nobody else reads it.
  struct alignas(64) Member {
    uint32_t num_missed = 0;  // phases that are still to be gone through
  };

  // Who takes part in a phase. `num_joined` is 0 between tasks; while all have arrived, the last of them makes the
  // next phase ready.
  struct Meeting {
    uint32_t phase;
    uint16_t num_joined, num_arrived;
  };

  // Where a helper sleeps between tasks, and a guest.
  struct alignas(64) Berth {
    std::atomic<uint32_t> calls{0};  // a futex
    std::atomic<bool> is_sleeping{false};
  };

  static int start_of(int thread, int crew_size, int num_units) {
    return (int)((int64_t)num_units * thread / crew_size);
  }

  bool take_of(Part& part, uint64_t phase, int size, int crew_size, int& first, int& last) {
    uint64_t seen = part.taken.load(std::memory_order_relaxed);
    do {
      first = seen >> 32 == phase ? (int)(uint32_t)seen : 0;
      if (first >= size) return false;
      const int share = crew_size == 1 ? size - first : (size - first) / SHARES;
      last = first + (share > 1 ? share : 1);
    } while (!part.taken.compare_exchange_weak(seen, phase << 32 | (uint32_t)last, std::memory_order_relaxed));
    return true;
  }

  void end();
  void helper(int thread);
  void take_part(int thread);
  bool join(int thread);
  void work(int thread);
  void pass(int thread, bool is_end);
  bool arrive(uint32_t phase, bool is_end);
  uint32_t sleep_until_called(Berth& berth, uint32_t seen);
  static void call(Berth& berth);

  const int num_threads_;
  Crew crew_;
  std::mutex run_mutex_;
  std::unique_ptr<Berth[]> berths_;
  std::unique_ptr<Part[]> parts_;
  std::unique_ptr<Member[]> members_;
  std::unique_ptr<std::thread[]> helpers_;  // caller and guest have none
  Task task_ = nullptr;
  void* argument_ = nullptr;
  std::atomic<int> crew_size_{1};  // of the running task
  uint32_t first_phase_ = 0;       // of the running task
  std::atomic<bool> is_closing_{false};
  std::atomic<int64_t> lost_{0};  // ns of the running task with work and without a core, all threads
  alignas(64) std::atomic<int> unit_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};  // a futex
  std::atomic<int> num_asleep_{0};              // at a barrier
  alignas(64) std::atomic<Meeting> meeting_{Meeting{0, 0, 0}};
};

// A phase: threads share its units, and nobody goes on before all are done.
template <class Do>
inline __attribute__((always_inline)) void for_units(Pool& pool, int thread, int num_units, Do&& work) {
  for (int first, last; pool.take(thread, num_units, first, last);)
    for (int unit = first; unit < last; unit++) work(unit);
  pool.barrier(thread);
}

}  // namespace trivet
