#include "threads.h"

#include <algorithm>
#include <chrono>

namespace outrider {

namespace {

constexpr uint64_t kRemaining = 0xffffffffu;

}  // namespace

ThreadPool::ThreadPool(int threads, int spin_microseconds)
    : shares_(static_cast<size_t>(std::max(1, threads))),
      size_(std::max(1, threads)),
      spin_microseconds_(std::max(0, spin_microseconds)) {
  for (int worker = 1; worker < size_; ++worker) {
    workers_.emplace_back([this, worker] { serve(worker); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_.store(true);
  }
  wake_.notify_all();
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::run(int64_t count, int64_t grain, Invoke invoke, const void* context) {
  // No thread can hold a claim here, so the description may change; a late reader of the old
  // ticket fails its compare-and-swap.
  count_.store(count, std::memory_order_relaxed);
  grain_.store(std::max<int64_t>(1, grain), std::memory_order_relaxed);
  invoke_.store(invoke, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  unfinished_.store(count, std::memory_order_relaxed);
  const uint64_t call = call_.load(std::memory_order_relaxed) + 1;
  for (int share = 0; share < size_; ++share) {
    const int64_t indices = share_begin(count, share + 1) - share_begin(count, share);
    shares_[static_cast<size_t>(share)].ticket.store(call << 32 | static_cast<uint64_t>(indices),
                                                     std::memory_order_release);
  }
  call_.store(call);
  if (sleepers_.load() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  wait_until([this] { return unfinished_.load(std::memory_order_acquire) == 0; });
}

// Claims and computes ranges until none is left, its own share first.
void ThreadPool::work(int worker) {
  int64_t done = 0;
  for (int i = 0; i < size_; ++i) done += drain((worker + i) % size_, worker);
  // Once per call: every thread's write to this counter moves its cache line between cores.
  if (done > 0) unfinished_.fetch_sub(done, std::memory_order_acq_rel);
}

// Early claims are large, late ones small: few claims in all, and a thread that loses its core
// holds back at most what it claimed. Returns how many indices were computed.
int64_t ThreadPool::drain(int share, int worker) {
  int64_t done = 0;
  std::atomic<uint64_t>& shared = shares_[static_cast<size_t>(share)].ticket;
  uint64_t ticket = shared.load(std::memory_order_acquire);
  while (const int64_t remaining = static_cast<int64_t>(ticket & kRemaining)) {
    const int64_t count = count_.load(std::memory_order_relaxed);
    const int64_t grain = grain_.load(std::memory_order_relaxed);
    const Invoke invoke = invoke_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const int64_t taken = std::min(remaining, std::max(grain, remaining / 2));
    if (!shared.compare_exchange_weak(ticket, ticket - static_cast<uint64_t>(taken),
                                      std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    const int64_t begin = share_begin(count, share + 1) - remaining;
    invoke(context, begin, begin + taken, worker);
    done += taken;
    ticket = shared.load(std::memory_order_acquire);
  }
  return done;
}

void ThreadPool::serve(int worker) {
  using Clock = std::chrono::steady_clock;
  const auto patience = std::chrono::microseconds(spin_microseconds_);
  uint64_t seen = 0;
  const auto has_work = [&] { return call_.load() != seen; };
  while (!stopping_.load(std::memory_order_relaxed)) {
    seen = call_.load();
    work(worker);
    const auto deadline = Clock::now() + patience;
    bool found = false;
    for (int looks = 0; !found && Clock::now() < deadline; ++looks) {
      found = watch_for(has_work, looks);
    }
    if (found) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return has_work() || stopping_.load(); });
    sleepers_.fetch_sub(1);
  }
}

}  // namespace outrider
