// What the machine can do at most with so many threads: bytes read from memory, products of int8 and of bf16.
// Prints one JSON line. Usage: limits NUM_THREADS. Built with -O3 -march=native by limits.py.
#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

constexpr size_t kBytes = size_t{256} << 20;  // far more than a last-level cache holds
constexpr int kRepeats = 9;
constexpr int64_t kTurns = 20'000'000;  // some tens of milliseconds

using Clock = std::chrono::steady_clock;

void pin(int index) {
    cpu_set_t allowed, one;
    sched_getaffinity(0, sizeof allowed, &allowed);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
        if (CPU_ISSET(cpu, &allowed) && index-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            pthread_setaffinity_np(pthread_self(), sizeof one, &one);
            return;
        }
}

// Seconds until the last of the threads is done, with all of them started at once; the median of the repeats.
template <typename Work>
double seconds(int num_threads, Work work) {
    std::vector<double> times(kRepeats);
    for (double& time : times) {
        pthread_barrier_t barrier;
        pthread_barrier_init(&barrier, nullptr, num_threads);
        std::vector<Clock::time_point> starts(num_threads), ends(num_threads);
        std::vector<std::thread> threads;
        for (int index = 0; index < num_threads; ++index)
            threads.emplace_back([&, index] {
                pin(index);
                pthread_barrier_wait(&barrier);
                starts[index] = Clock::now();
                work(index);
                ends[index] = Clock::now();
            });
        for (std::thread& thread : threads) thread.join();
        pthread_barrier_destroy(&barrier);
        const auto first = *std::min_element(starts.begin(), starts.end());
        time = std::chrono::duration<double>(*std::max_element(ends.begin(), ends.end()) - first).count();
    }
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return times[kRepeats / 2];
}

volatile uint64_t sink;  // keeps results alive that nobody reads

#ifdef __AVX512F__
template <typename Vector>
inline void asm_keep(Vector& vector) {
    asm volatile("" : "+v"(vector));
}
#endif

#ifdef __AVX512F__
uint64_t read_all(const char* begin, size_t size) {
    __m512i sums[4] = {};
    for (size_t at = 0; at + 256 <= size; at += 256)
        for (int part = 0; part < 4; ++part) {
            const char* line = begin + at + 64 * part;
            _mm_prefetch(line + 4096, _MM_HINT_T0);
            sums[part] = _mm512_xor_si512(sums[part], _mm512_load_si512(line));
        }
    const __m512i all = _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
    return _mm512_reduce_add_epi64(all);
}
#else
uint64_t read_all(const char* begin, size_t size) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(begin);
    uint64_t sums[8] = {};
    for (size_t at = 0; at + 8 <= size / 8; at += 8)
        for (int part = 0; part < 8; ++part) sums[part] ^= words[at + part];
    return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}
#endif

double read_gb_per_s(int num_threads) {
    char* data = static_cast<char*>(std::aligned_alloc(4096, kBytes));
    std::memset(data, 1, kBytes);
    const size_t share = kBytes / num_threads / 4096 * 4096;
    const double time =
        seconds(num_threads, [=](int index) { sink = read_all(data + index * share, share); });
    std::free(data);
    return share * num_threads / time / 1e9;
}

// Products in registers, of which eight are in flight (latency 4 to 6 cycles, at most two begun a cycle). The
// empty asm keeps the compiler from adding up in one go, and named accumulators keep them out of memory.
#define TRIVET_EIGHT(TURN) TURN(a) TURN(b) TURN(c) TURN(d) TURN(e) TURN(f) TURN(g) TURN(h)

// One multiplication and one addition each count.
double int8_gop_per_s(int num_threads) {
#ifdef __AVX512VNNI__
    const double time = seconds(num_threads, [](int) {
        const __m512i left = _mm512_set1_epi8(3), right = _mm512_set1_epi8(5);
        __m512i a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
        for (int64_t turn = 0; turn < kTurns; ++turn) {
#define TRIVET_TURN(sum) sum = _mm512_dpbusd_epi32(sum, left, right); asm_keep(sum);
            TRIVET_EIGHT(TRIVET_TURN)
#undef TRIVET_TURN
        }
        sink = _mm512_reduce_add_epi32(((a + b) + (c + d)) + ((e + f) + (g + h)));
    });
    return num_threads * kTurns * 8 * 128.0 / time / 1e9;
#else
    return 0.0 * num_threads;
#endif
}

double bf16_gflop_per_s(int num_threads) {
#ifdef __AVX512BF16__
    const double time = seconds(num_threads, [](int) {
        const __m512bh left = (__m512bh)_mm512_set1_epi16(0x3f80), right = left;
        __m512 a{}, b{}, c{}, d{}, e{}, f{}, g{}, h{};
        for (int64_t turn = 0; turn < kTurns; ++turn) {
#define TRIVET_TURN(sum) sum = _mm512_dpbf16_ps(sum, left, right); asm_keep(sum);
            TRIVET_EIGHT(TRIVET_TURN)
#undef TRIVET_TURN
        }
        sink = uint64_t(_mm512_reduce_add_ps(((a + b) + (c + d)) + ((e + f) + (g + h))));
    });
    return num_threads * kTurns * 8 * 64.0 / time / 1e9;
#else
    return 0.0 * num_threads;
#endif
}

}  // namespace

int main(int argc, char** argv) {
    const int num_threads = argc > 1 ? std::atoi(argv[1]) : 1;
    if (num_threads < 1) {
        std::fprintf(stderr, "usage: limits NUM_THREADS\n");
        return 2;
    }
    std::printf("{\"read_gb_per_s\": %.2f, \"int8_gop_per_s\": %.1f, \"bf16_gflop_per_s\": %.1f}\n",
                read_gb_per_s(num_threads), int8_gop_per_s(num_threads), bf16_gflop_per_s(num_threads));
}
