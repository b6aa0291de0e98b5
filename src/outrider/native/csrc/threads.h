// A small thread pool whose partition of the work never influences a result.
//
// `parallel_for` splits [0, count) into contiguous ranges that the threads claim through atomic
// tickets. Which thread computes which range varies from call to call, so a body must compute each
// index independently of the others and of its worker number (which only selects scratch memory).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace outrider {

// Watches for `done` for about a microsecond; whether it came true. A waiting thread first only
// watches, since gaps inside a forward are that short. From a few looks on, it also offers its core
// to others: the thread it waits for may need that very core.
template <typename Done>
bool watch_for(const Done& done, int looks) {
  constexpr int kPausesPerLook = 32;
  constexpr int kLooksBeforeYield = 100;
  for (int i = 0; i < kPausesPerLook; ++i) {
    if (done()) return true;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  if (looks >= kLooksBeforeYield) std::this_thread::yield();
  return false;
}

// Waits for `done`, which another running thread will make true.
template <typename Done>
void wait_until(const Done& done) {
  for (int looks = 0; !watch_for(done, looks);) ++looks;
}

class ThreadPool {
 public:
  // `threads` counts the caller; 1 means no worker is started. A worker that finds nothing to do
  // spins for about `spin_microseconds` and then sleeps until the next call.
  explicit ThreadPool(int threads, int spin_microseconds = 200);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // Calls body(begin, end, worker) until every index of [0, count) has been covered exactly once,
  // then returns; everything the bodies wrote is visible to the caller. 0 <= worker < size().
  // Ranges hold at least `grain` indices, except where a thread's share ends. Bodies must not throw
  // and must not call parallel_for. Only one thread may call at a time. count < 2^31.
  template <typename Body>
  void parallel_for(int64_t count, int64_t grain, const Body& body) {
    if (count <= 0) return;
    if (size_ == 1 || count <= grain) {
      body(int64_t{0}, count, 0);
      return;
    }
    run(
        count, grain,
        [](const void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<const Body*>(context))(begin, end, worker);
        },
        &body);
  }

  template <typename Body>
  void parallel_for(int64_t count, const Body& body) {
    parallel_for(count, 1, body);
  }

 private:
  using Invoke = void (*)(const void* context, int64_t begin, int64_t end, int worker);

  void run(int64_t count, int64_t grain, Invoke invoke, const void* context);
  void work(int worker);
  void serve(int worker);

  // A thread's share of a call: the same part of [0, count) every time, so that what it wrote and
  // read in one call is still in its own cache in the next. Others take from it when they run dry.
  // High 32 bits: number of the call. Low 32 bits: indices not yet claimed. A claim is one
  // compare-and-swap on both, so a thread that was descheduled inside an older call can never take
  // a range of a newer one with the older call's description.
  struct alignas(128) Share {
    std::atomic<uint64_t> ticket{0};
  };

  int64_t drain(int share, int worker);
  int64_t share_begin(int64_t count, int share) const { return count * share / size_; }

  std::vector<Share> shares_;
  alignas(64) std::atomic<uint64_t> call_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<int64_t> count_{0};
  std::atomic<int64_t> grain_{1};
  std::atomic<Invoke> invoke_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
  const int size_;
  const int spin_microseconds_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace outrider
