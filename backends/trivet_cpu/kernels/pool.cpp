// The thread pool of one engine. Reference: none, it computes nothing. Test: tests/backends/trivet_cpu/test_pool.py.
#include "pool.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <system_error>

namespace trivet {
namespace {

// Between the phases of a step others arrive within a few microseconds, unless one was preempted: then our core
// is worth more to it than to us, and the kernel moves it here once we sleep (not while we yield). Between steps
// the host works for 0.3 to 1.5 ms; sleeping and waking take about 50 us of that and leave the core to the host.
constexpr int SPINS_IN_STEP = 2000;  // about 40 ns each on a Zen 4
constexpr int SPINS_BETWEEN_STEPS = 1000;

thread_local const Pool* inside = nullptr;  // the pool whose task this thread runs
thread_local int64_t asleep = 0;             // ns of that task at barriers

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, nullptr, nullptr, 0);
}

int64_t nanoseconds(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec;
}

}  // namespace

Pool::Pool(int num_threads, bool has_guest)
    : num_threads_(num_threads), crew_(num_threads), berths_(new Berth[num_threads]), parts_(new Part[num_threads]),
      members_(new Member[num_threads]), helpers_(new std::thread[num_threads]) {
  try {
    for (int thread = 1; thread < num_threads - has_guest; thread++)
      helpers_[thread] = std::thread([this, thread] { helper(thread); });
  } catch (const std::system_error&) {
    end();
    throw;
  }
}

Pool::~Pool() { end(); }

void Pool::end() {
  is_closing_ = true;
  for (int thread = 1; thread < num_threads_ && helpers_[thread].joinable(); thread++) {
    call(berths_[thread]);
    helpers_[thread].join();
  }
}

void Pool::run(Task task, void* argument) {
  if (inside == this) {
    fputs("trivet: a task of a thread pool calls its own pool\n", stderr);
    abort();
  }
  const std::lock_guard<std::mutex> lock(run_mutex_);
  const int64_t start = nanoseconds(CLOCK_MONOTONIC);
  task_ = task;
  argument_ = argument;
  const int crew_size = crew_.size();
  crew_size_.store(crew_size, std::memory_order_relaxed);
  first_phase_ = phase_.load(std::memory_order_relaxed);
  lost_.store(0, std::memory_order_relaxed);
  unit_.store(0, std::memory_order_relaxed);
  // Phases are counted in 32 bits, and a part that is not used for long would see its number again.
  for (int thread = 0; thread < num_threads_; thread++)
    parts_[thread].taken.store((uint64_t)first_phase_ << 32, std::memory_order_relaxed);
  meeting_.store({first_phase_, 1, 0});
  for (int thread = 1; thread < crew_size; thread++) call(berths_[thread]);
  work(0);
  pass(0, true);
  const int64_t end = nanoseconds(CLOCK_MONOTONIC);
  crew_.note(end, end - start, lost_.load(std::memory_order_relaxed));
}

// The task, and how long this thread had work and no core for it.
void Pool::work(int thread) {
  const int64_t wall = nanoseconds(CLOCK_MONOTONIC), cpu = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
  inside = this;
  asleep = 0;
  task_(argument_, thread);
  inside = nullptr;
  const int64_t used = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
  lost_.fetch_add(nanoseconds(CLOCK_MONOTONIC) - wall - used - asleep, std::memory_order_relaxed);
}

// Take part in the running task from its current phase on. False: there is none, or not for this thread.
bool Pool::join(int thread) {
  // Who opens the next phase may lose its core before it has, perhaps to this very thread.
  int num_waits = 0;
  const auto wait_a_moment = [&] {
    constexpr timespec moment{0, 50'000};
    ++num_waits % SPINS_IN_STEP ? relax() : void(nanosleep(&moment, nullptr));
  };
  Meeting seen = meeting_.load(std::memory_order_acquire);
  for (;;) {
    // A task that has ended meanwhile has another phase, so that what was read of it does no harm.
    if (!seen.num_joined || thread >= crew_size_.load(std::memory_order_relaxed)) return false;
    if (seen.num_arrived == seen.num_joined) {
      wait_a_moment();
      seen = meeting_.load(std::memory_order_acquire);
    } else if (meeting_.compare_exchange_weak(seen, {seen.phase, uint16_t(seen.num_joined + 1), seen.num_arrived},
                                              std::memory_order_acq_rel, std::memory_order_acquire)) {
      break;
    }
  }
  members_[thread].num_missed = seen.phase - first_phase_;
  while (phase_.load(std::memory_order_acquire) != seen.phase) wait_a_moment();
  return true;
}

void Pool::pass(int thread, bool is_end) {
  if (members_[thread].num_missed) {
    members_[thread].num_missed--;
    return;
  }
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrive(phase, is_end)) return;
  for (int spin = 0; spin < SPINS_IN_STEP; spin++) {
    if (phase_.load(std::memory_order_acquire) != phase) return;
    relax();
  }
  const int64_t start = nanoseconds(CLOCK_MONOTONIC);
  num_asleep_.fetch_add(1);
  while (phase_.load() == phase) futex(&phase_, FUTEX_WAIT_PRIVATE, phase);
  num_asleep_.fetch_sub(1);
  asleep += nanoseconds(CLOCK_MONOTONIC) - start;
}

// True for the last of a phase, which has opened the next one.
bool Pool::arrive(uint32_t phase, bool is_end) {
  Meeting seen = meeting_.load(std::memory_order_relaxed);
  while (!meeting_.compare_exchange_weak(seen, {phase, seen.num_joined, uint16_t(seen.num_arrived + 1)},
                                         std::memory_order_acq_rel, std::memory_order_relaxed))
    continue;
  if (seen.num_arrived + 1 < seen.num_joined) return false;
  unit_.store(0, std::memory_order_relaxed);
  meeting_.store({phase + 1, is_end ? uint16_t(0) : seen.num_joined, 0}, std::memory_order_release);
  phase_.store(phase + 1);
  if (num_asleep_.load()) futex(&phase_, FUTEX_WAKE_PRIVATE, INT_MAX);
  return true;
}

void Pool::helper(int thread) {
  for (uint32_t seen = 0;;) {
    seen = sleep_until_called(berths_[thread], seen);
    if (is_closing_) return;
    take_part(thread);
  }
}

void Pool::help(const std::atomic<int64_t>& done, int64_t wanted) {
  const int thread = num_threads_ - 1;
  Berth& berth = berths_[thread];
  for (uint32_t seen = berth.calls.load();;) {
    if (done.load(std::memory_order_acquire) >= wanted) return;
    if (thread) take_part(thread);
    if (done.load(std::memory_order_acquire) >= wanted) return;
    seen = sleep_until_called(berth, seen);
  }
}

void Pool::take_part(int thread) {
  if (!join(thread)) return;
  work(thread);
  pass(thread, true);
}

void Pool::call(Berth& berth) {
  berth.calls.fetch_add(1);
  if (berth.is_sleeping.load()) futex(&berth.calls, FUTEX_WAKE_PRIVATE, 1);
}

// How often it was called until now, once that is more than `seen`.
uint32_t Pool::sleep_until_called(Berth& berth, uint32_t seen) {
  for (int spin = 0; spin < SPINS_BETWEEN_STEPS; spin++) {
    if (const uint32_t calls = berth.calls.load(std::memory_order_acquire); calls != seen) return calls;
    relax();
  }
  berth.is_sleeping.store(true);
  // The kernel compares before it sleeps, so a call made meanwhile is not missed.
  uint32_t calls;
  while ((calls = berth.calls.load()) == seen) futex(&berth.calls, FUTEX_WAIT_PRIVATE, seen);
  berth.is_sleeping.store(false);
  return calls;
}

}  // namespace trivet
