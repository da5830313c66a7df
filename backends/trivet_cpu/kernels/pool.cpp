// The thread pool of one engine. Reference: none, it computes nothing. Test: tests/contract, rule 2 at several thread counts.
#include "pool.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace trivet {
namespace {

// Between the phases of a step others arrive within a few microseconds, unless one was preempted: then its
// core is worth more to it than to us. Between steps the host works for 0.3 to 1.5 ms; sleeping and waking
// take about 50 us of that and leave the core to the host.
constexpr int SPINS_IN_STEP = 2000;  // about 40 ns each on a Zen 4
constexpr int SPINS_BETWEEN_STEPS = 1000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}

}  // namespace

Pool::Pool(int num_threads) : num_threads_(num_threads) {
  for (int thread = 1; thread < num_threads; thread++) helpers_.emplace_back([this, thread] { helper(thread); });
}

Pool::~Pool() {
  is_closing_ = true;
  calls_.fetch_add(1);
  futex(&calls_, FUTEX_WAKE_PRIVATE, INT32_MAX);
  for (std::thread& helper : helpers_) helper.join();
}

void Pool::run(Task task, void* argument) {
  task_ = task;
  argument_ = argument;
  unit_.store(0, std::memory_order_relaxed);
  calls_.fetch_add(1);
  if (sleeping_.load()) futex(&calls_, FUTEX_WAKE_PRIVATE, INT32_MAX);
  task(argument, 0);
  barrier();
}

void Pool::barrier() {
  if (num_threads_ == 1) {
    unit_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    unit_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spin = 0; phase_.load(std::memory_order_acquire) == phase; spin++) {
    if (spin < SPINS_IN_STEP)
      relax();
    else
      sched_yield();
  }
}

void Pool::helper(int thread) {
  for (uint32_t seen = 0;;) {
    sleep_until_called(seen);
    seen++;
    if (is_closing_) return;
    task_(argument_, thread);
    barrier();
  }
}

void Pool::sleep_until_called(uint32_t seen) {
  for (int spin = 0; spin < SPINS_BETWEEN_STEPS; spin++) {
    if (calls_.load(std::memory_order_acquire) != seen) return;
    relax();
  }
  sleeping_.fetch_add(1);
  // The kernel compares before it sleeps, so a call made meanwhile is not missed.
  while (calls_.load() == seen) futex(&calls_, FUTEX_WAIT_PRIVATE, seen);
  sleeping_.fetch_sub(1);
}

}  // namespace trivet
