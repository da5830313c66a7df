// Threads that work together on one step: the caller and its helpers, with barriers between phases.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

namespace trivet {

// Work of a phase is taken unit by unit from a counter: with fixed shares one preempted thread would hold
// up all others at every barrier. Waiting spins for a bounded time and then gives the core away.
class Pool {
 public:
  typedef void (*Task)(void* argument, int thread);

  explicit Pool(int num_threads);
  ~Pool();

  // Run `task` in every thread, the caller's included (thread 0), and return when all have returned.
  void run(Task task, void* argument);

  // Wait until every thread of the running task is here; then the unit counter starts again at 0.
  void barrier();

  // The next unit of the current phase; at or past the phase's number there is none left.
  int next_unit() { return unit_.fetch_add(1, std::memory_order_relaxed); }

  int num_threads() const { return num_threads_; }

 private:
  void helper(int thread);
  void sleep_until_called(uint32_t seen);

  const int num_threads_;
  std::vector<std::thread> helpers_;
  Task task_ = nullptr;
  void* argument_ = nullptr;
  std::atomic<bool> is_closing_{false};
  alignas(64) std::atomic<int> unit_{0};
  alignas(64) std::atomic<uint32_t> calls_{0};  // a futex: helpers sleep on it between tasks
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> sleeping_{0};
};

}  // namespace trivet
