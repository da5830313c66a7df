// See stream.h. Reference: none, it computes nothing. Test: tests/backends/trivet_cpu/test_pool.py.
#include "stream.h"

#include <utility>

namespace trivet {
namespace {

constexpr int SPINS_WITHOUT_WORK = 1000;  // 40 us; the next step is nearly always there already

}  // namespace

Stream::Stream(int num_threads) : pool_(num_threads, true), leader_([this] { lead(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_closing_ = true;
  }
  has_work_.notify_one();
  leader_.join();
}

int64_t Stream::post(std::function<void(Pool&)> work) {
  int64_t number;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    works_.push_back(std::move(work));
    number = num_posted_.fetch_add(1) + 1;
  }
  has_work_.notify_one();
  return number;
}

void Stream::wait(int64_t number) { pool_.help(num_done_, number); }

void Stream::lead() {
  while (const std::function<void(Pool&)> work = next()) {
    work(pool_);
    num_done_.fetch_add(1);
    pool_.call_guest();
  }
}

// None: the stream ends.
std::function<void(Pool&)> Stream::next() {
  for (int spin = 0; spin < SPINS_WITHOUT_WORK; spin++) {
    if (num_posted_.load(std::memory_order_acquire) > num_done_.load(std::memory_order_relaxed)) break;
    relax();
  }
  std::unique_lock<std::mutex> lock(mutex_);
  has_work_.wait(lock, [this] { return is_closing_ || !works_.empty(); });
  if (is_closing_) return nullptr;
  std::function<void(Pool&)> work = std::move(works_.front());
  works_.pop_front();
  return work;
}

}  // namespace trivet
