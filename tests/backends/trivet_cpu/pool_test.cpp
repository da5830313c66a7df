// The thread pool by itself, as a program: `pool_test CASE`. Ends with 0 where the case holds, else it says
// what did not. Compiled and run by test_pool.py.
#include "pool.h"
#include "stream.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <system_error>
#include <vector>

using namespace trivet;

namespace {

void expect(bool is_true, const char* what) {
  if (is_true) return;
  fprintf(stderr, "not so: %s\n", what);
  exit(1);
}

struct Phases {
  Pool* pool;
  int num_phases, num_units;
  bool takes_shares;
  std::vector<std::atomic<int>> done;  // [phases * units] how often each unit ran
  std::atomic<int> early{0};           // units that ran before their phase
  std::atomic<int> ended{0};           // of all phases before
};

void run_phases(void* argument, int thread) {
  Phases& p = *(Phases*)argument;
  for (int phase = 0; phase < p.num_phases; phase++) {
    const auto unit_of = [&](int unit) {
      p.done[(size_t)phase * p.num_units + unit]++;
      if (p.ended.fetch_add(1) < phase * p.num_units) p.early++;
    };
    if (p.takes_shares) {
      for (int first, last; p.pool->take(thread, p.num_units, first, last);)
        for (int unit = first; unit < last; unit++) unit_of(unit);
    } else {
      for (int unit; (unit = p.pool->next_unit(thread)) < p.num_units;) unit_of(unit);
    }
    p.pool->barrier(thread);
  }
}

void units(bool takes_shares) {
  for (const int threads : {1, 2, 3, 5, 7}) {
    Pool pool(threads);
    for (const int num_units : {0, 1, 2, 3, 16, 97}) {
      const int phases = 50;
      Phases p{&pool, phases, num_units, takes_shares, std::vector<std::atomic<int>>(phases * num_units)};
      for (int run = 0; run < 5; run++) {
        for (auto& count : p.done) count = 0;
        p.ended = 0;
        pool.run(run_phases, &p);
        for (auto& count : p.done) expect(count == 1, "every unit of every phase runs once");
        expect(p.early == 0, "no unit runs before all of the phase before it");
      }
    }
  }
}

// What a core wrote in one phase it finds in its cache in the next.
void own() {
  struct Seen {
    Pool* pool;
    std::atomic<int> arrived{0}, strange{0};
  };
  Pool pool(4);
  Seen seen{&pool};
  pool.run(
      [](void* argument, int thread) {
        Seen& seen = *(Seen*)argument;
        for (int phase = 1; phase <= 20; phase++) {
          int first, last;
          const bool has_some = seen.pool->take(thread, 64, first, last);
          if (!has_some || first != 16 * thread || last > 16 * (thread + 1)) seen.strange++;
          for (seen.arrived++; seen.arrived < 4 * phase;) usleep(1);  // until then nobody helps another
          while (seen.pool->take(thread, 64, first, last)) continue;
          seen.pool->barrier(thread);
        }
      },
      &seen);
  expect(seen.strange == 0, "a thread begins with the same units in every phase");
}

void threads() {
  struct Seen {
    std::atomic<int> calls[7];
  } seen{};
  Pool pool(7);
  for (int i = 0; i < 100; i++)
    pool.run([](void* argument, int thread) { ((Seen*)argument)->calls[thread]++; }, &seen);
  expect(seen.calls[0] == 100, "the caller is thread 0 of every run");
  for (const auto& calls : seen.calls) expect(calls <= 100, "a thread runs a task once");
  expect(pool.num_threads() == 7 && pool.crew_size() >= 1 && pool.crew_size() <= 7, "the crew is part of the pool");
}

// A helper that comes late takes part from there on, and nobody waits for it before.
std::atomic<bool> is_held{false}, may_go{false};

void hold(int) {
  is_held = true;
  while (!may_go) continue;
}

void late() {
  constexpr int PHASES = 10, COMES_AT = 4, UNITS = 8;
  struct Seen {
    Pool* pool;
    std::atomic<pthread_t> helper{};
    std::atomic<int> first_phase{PHASES}, done[PHASES][2]{};  // of the helper; units by thread
  };
  Pool pool(2);
  Seen seen{&pool};
  const auto come = [](void* argument, int thread) {
    Seen& seen = *(Seen*)argument;
    if (thread) seen.helper = pthread_self();
    while (!seen.helper.load()) usleep(1);
  };
  pool.run(come, &seen);
  signal(SIGUSR1, hold);
  pthread_kill(seen.helper, SIGUSR1);
  while (!is_held) usleep(1);
  pool.run(
      [](void* argument, int thread) {
        Seen& seen = *(Seen*)argument;
        for (int phase = 0; phase < PHASES; phase++) {
          if (thread && seen.pool->has_joined(thread) && phase < seen.first_phase) seen.first_phase = phase;
          if (!thread && phase == COMES_AT) {
            may_go = true;
            while (seen.first_phase == PHASES) usleep(1);
          }
          for (int first, last; seen.pool->take(thread, UNITS, first, last);) {
            seen.done[phase][thread] += last - first;
            while (!thread && phase >= COMES_AT && !seen.done[phase][1]) usleep(1);
          }
          seen.pool->barrier(thread);
        }
      },
      &seen);
  expect(seen.first_phase == COMES_AT, "a late helper joins at the phase that runs then");
  for (int phase = 0; phase < PHASES; phase++) {
    expect(seen.done[phase][0] + seen.done[phase][1] == UNITS, "every unit of every phase runs once");
    expect(phase >= COMES_AT || !seen.done[phase][1], "it takes no unit of a phase that is over");
  }
}

// A stream's work runs in order and without anybody who waits; who waits computes, and only in time for it.
void stream() {
  for (const int threads : {1, 2, 5}) {
    std::vector<int> order;
    std::atomic<int> ended{0};
    {
      Stream stream(threads);
      for (int i = 0; i < 300; i++) {
        const int64_t number = stream.post([&, i](Pool&) {
          order.push_back(i);
          ended = i + 1;
        });
        expect(number == i + 1, "work is numbered in the order of its posts");
        if (i % 7 == 0) {
          stream.wait(number - 1);  // it may have been done long ago
          expect(ended >= i, "what was waited for is done");
        }
        if (i % 50 == 0) usleep(1000);  // long enough for the stream to sleep
      }
      stream.wait(0);
      stream.wait(300);
      for (int i = 0; i < 300; i++) expect(order.at(i) == i, "work runs in order");
      std::atomic<bool> has_begun{false};
      stream.post([&](Pool&) {
        has_begun = true;
        usleep(50'000);
        ended = 301;
      });
      stream.post([&](Pool&) { ended = 302; });
      while (!has_begun) usleep(1);
    }
    expect(ended == 301, "what has begun is done when the stream has ended; what has not is never begun");
  }
}

void guest() {
  struct Seen {
    std::atomic<int> most{0}, calls{0};
    std::atomic<bool> is_wanted{false};
    std::atomic<pthread_t> guest{};
  } seen;
  Stream stream(2);
  const auto task = [](void* argument, int thread) {
    Seen& seen = *(Seen*)argument;
    seen.calls++;
    if (thread) seen.guest = pthread_self();
    // In vain, unless who waits computes.
    for (int i = 0; i < 5000 && seen.is_wanted && !seen.guest.load(); i++) usleep(10);
  };
  std::atomic<bool> has_run{false};
  const auto run = [&](Pool& pool) {
    pool.run(task, &seen);
    has_run = true;
  };
  stream.post(run);
  while (!has_run) usleep(1);  // nobody waits, and it runs
  stream.wait(1);
  expect(seen.calls == 1 && !seen.guest.load(), "who comes when all is done computes nothing");
  seen.is_wanted = true;
  for (int i = 0; i < 100 && !seen.guest.load(); i++) stream.wait(stream.post(run));  // its crew may have shrunk
  expect(seen.guest.load() == pthread_self(), "who waits is a thread of the pool");
  seen.is_wanted = false;
  const int64_t first = stream.post([](Pool&) {});
  std::atomic<bool> may_go{false};
  const int64_t second = stream.post([&](Pool&) {
    while (!may_go) usleep(1);
  });
  stream.wait(first);  // for ever, if it waited for the second as well
  may_go = true;
  stream.wait(second);
  const clock_t before = clock();
  usleep(100'000);
  expect(clock() - before < CLOCKS_PER_SEC / 20, "a stream without work takes no CPU time");
}

void idle() {
  for (int i = 0; i < 200; i++) Pool pool(3);                               // never used
  for (int i = 0; i < 200; i++) Pool(3).run([](void*, int) {}, nullptr);  // helpers spin, or sleep already
  Pool pool(3);
  pool.run([](void*, int) {}, nullptr);
  usleep(20'000);  // long enough for helpers to sleep
  const clock_t before = clock();
  usleep(100'000);
  expect(clock() - before < CLOCKS_PER_SEC / 20, "a pool without a task takes no CPU time");
}

// Two threads that use one pool take turns.
void shared() {
  struct Turn {
    std::atomic<int> inside{0}, most{0};
  } turn;
  Pool pool(2);
  const auto use = [&] {
    for (int i = 0; i < 200; i++)
      pool.run(
          [](void* argument, int thread) {
            Turn& turn = *(Turn*)argument;
            if (thread) return;
            if (++turn.inside > 1) turn.most = 2;
            usleep(10);  // long enough to be met
            turn.inside--;
          },
          &turn);
  };
  std::thread other(use);
  use();
  other.join();
  expect(turn.most == 0, "runs of one pool do not overlap");
}

void nested() {
  Pool pool(2);
  pool.run([](void* argument, int) { ((Pool*)argument)->run([](void*, int) {}, nullptr); }, &pool);
}

// Stacks of 8 MB each for more threads than there is room for.
void refused() {
  const rlimit room{rlim_t(1) << 30, rlim_t(1) << 30};
  setrlimit(RLIMIT_AS, &room);
  bool is_refused = false;
  try {
    Pool pool(4000);
  } catch (const std::system_error&) {
    is_refused = true;
  }
  expect(is_refused, "a pool that is too large throws, and its threads end");
  Pool(2).run([](void*, int) {}, nullptr);
}

void crew() {
  constexpr int64_t W = Crew::WINDOW, P = Crew::FIRST_PATIENCE;
  Crew alone(1);
  alone.note(W, W, W);
  expect(alone.size() == 1, "one thread stays whatever it lost");

  Crew crew(4);
  int64_t now = W;
  crew.note(now, W, W / 4);
  expect(crew.size() == 4, "a loss of a thread's share is borne");
  crew.note(now += W, W / 2, W);
  expect(crew.size() == 4, "half a window is not judged");
  crew.note(now += W, W / 2, W);
  expect(crew.size() == 3, "a crowded core costs one thread");
  crew.note(now += W, W, 0);
  expect(crew.size() == 3, "no trial before patience has ended");
  crew.note(now += P, W, 0);
  expect(crew.size() == 4, "then one more is tried");
  crew.note(now += W, W, W);
  expect(crew.size() == 3, "a trial that fails ends");
  crew.note(now += P, W, 0);
  expect(crew.size() == 3, "and patience is doubled");
  crew.note(now += P, W, 0);
  expect(crew.size() == 4, "to twice the first");
  crew.note(now += W, W, 0);
  crew.note(now += W, W, W);
  crew.note(now += P, W, 0);
  expect(crew.size() == 4, "a trial that stood makes it the first again");

  Crew many(8);
  now = 0;
  for (int i = 0; i < 20; i++) many.note(now += W, W, 8 * W);
  expect(many.size() >= 1 && many.size() <= 2, "a full machine leaves one thread, and trials of two");
  for (int i = 0; i < 20; i++) many.note(now += Crew::MAX_PATIENCE, W, 0);
  expect(many.size() == 8, "all come back");
}

}  // namespace

int main(int, char** arguments) {
  const char* name = arguments[1];
  if (!strcmp(name, "units")) units(false);
  if (!strcmp(name, "shares")) units(true);
  if (!strcmp(name, "own")) own();
  if (!strcmp(name, "threads")) threads();
  if (!strcmp(name, "late")) late();
  if (!strcmp(name, "stream")) stream();
  if (!strcmp(name, "guest")) guest();
  if (!strcmp(name, "idle")) idle();
  if (!strcmp(name, "shared")) shared();
  if (!strcmp(name, "nested")) nested();
  if (!strcmp(name, "refused")) refused();
  if (!strcmp(name, "crew")) crew();
  return 0;
}
