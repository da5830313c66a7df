// Threads that work together on one step: the caller and its helpers, with barriers between phases.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "crew.h"

namespace trivet {

// Work of a phase is taken from a counter: with fixed shares one preempted thread would hold up all others
// at every barrier. Waiting spins for a bounded time and then gives the core away.
class Pool {
 public:
  typedef void (*Task)(void* argument, int thread);

  explicit Pool(int num_threads);  // throws std::system_error where the host allows no such number
  ~Pool();  // no task runs

  // Run `task` in every thread of the crew, the caller's included (thread 0), and return when all have
  // returned. A second caller waits for the first; a task that calls it ends the process.
  void run(Task task, void* argument);

  // Wait until every thread of the running task is here; then the unit counter starts again at 0.
  void barrier();

  // The next unit of the current phase; at or past the phase's number there is none left.
  int next_unit() { return unit_.fetch_add(1, std::memory_order_relaxed); }

  // The next units [first, last) of the phase's `num_units`; false: there is none left. Shares shrink towards
  // the phase's end (guided self-scheduling, Polychronopoulos and Kuck 1987): weights that follow each other
  // are read by one core, which made the product of one row with a head of 30 MB 1.8 times as fast.
  bool take(int num_units, int& first, int& last) {
    first = unit_.load(std::memory_order_relaxed);
    do {
      if (first >= num_units) return false;
      const int share = crew_size_ == 1 ? num_units - first : (num_units - first) / (SHARES * crew_size_);
      last = first + (share > 1 ? share : 1);
    } while (!unit_.compare_exchange_weak(first, last, std::memory_order_relaxed));
    return true;
  }

  int num_threads() const { return num_threads_; }
  int crew_size() const { return crew_.size(); }  // of the next run

 private:
  static constexpr int SHARES = 4;  // a thread's first share is this part of its fair one

  // Where a helper sleeps between tasks.
  struct alignas(64) Berth {
    std::atomic<uint32_t> calls{0};  // a futex
    std::atomic<bool> is_sleeping{false};
  };

  void end();
  void helper(int thread);
  void work(int thread);
  void sleep_until_called(Berth& berth, uint32_t seen);
  static void call(Berth& berth);

  const int num_threads_;
  Crew crew_;
  std::mutex run_mutex_;
  std::unique_ptr<Berth[]> berths_;
  std::unique_ptr<std::thread[]> helpers_;  // the first is none: it is the caller
  Task task_ = nullptr;
  void* argument_ = nullptr;
  int crew_size_ = 1;  // of the running task
  std::atomic<bool> is_closing_{false};
  std::atomic<int64_t> lost_{0};  // ns of the running task without a core, all threads
  alignas(64) std::atomic<int> unit_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
};

}  // namespace trivet
