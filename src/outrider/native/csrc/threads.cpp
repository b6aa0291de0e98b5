#include "threads.h"

#include <algorithm>
#include <chrono>

namespace outrider {

namespace {

constexpr uint64_t kRemaining = 0xffffffffu;

}  // namespace

ThreadPool::ThreadPool(int threads, int spin_microseconds)
    : size_(std::max(1, threads)), spin_microseconds_(std::max(0, spin_microseconds)) {
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
  const uint64_t call = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(call << 32 | static_cast<uint64_t>(count));
  if (sleepers_.load() > 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  wait_until([this] { return unfinished_.load(std::memory_order_acquire) == 0; });
}

// Claims and computes ranges until none is left. Early claims are large, late ones small: few
// claims in all, and a thread that loses its core holds back at most what it claimed.
void ThreadPool::work(int worker) {
  const int64_t shares = 2 * static_cast<int64_t>(size_);
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (const int64_t remaining = static_cast<int64_t>(ticket & kRemaining)) {
    const int64_t count = count_.load(std::memory_order_relaxed);
    const int64_t grain = grain_.load(std::memory_order_relaxed);
    const Invoke invoke = invoke_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const int64_t taken = std::min(remaining, std::max(grain, remaining / shares));
    if (!ticket_.compare_exchange_weak(ticket, ticket - static_cast<uint64_t>(taken),
                                       std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    const int64_t begin = count - remaining;
    invoke(context, begin, begin + taken, worker);
    unfinished_.fetch_sub(taken, std::memory_order_acq_rel);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::serve(int worker) {
  using Clock = std::chrono::steady_clock;
  const auto patience = std::chrono::microseconds(spin_microseconds_);
  const auto has_work = [this] { return (ticket_.load() & kRemaining) != 0; };
  while (!stopping_.load(std::memory_order_relaxed)) {
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
