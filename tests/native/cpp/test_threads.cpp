#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"
#include "threads.h"

namespace outrider_test {

namespace {

using outrider::ThreadPool;

// Would catch an index computed twice, skipped, or handed to a worker that does not exist.
void every_index_once() {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads, 20);
    Random random(1);
    for (int call = 0; call < 2000; ++call) {
      const int64_t count = random.below(call % 50 == 0 ? 5000 : 60);
      const int64_t grain = 1 + random.below(7);
      std::vector<std::atomic<int>> hits(static_cast<size_t>(count));
      std::atomic<bool> worker_exists{true};
      pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int worker) {
        if (worker < 0 || worker >= threads) worker_exists = false;
        for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)]++;
      });
      bool once = true;
      for (const auto& hit : hits) once = once && hit == 1;
      CHECK(once && worker_exists, "count %d with %d threads", static_cast<int>(count), threads);
    }
  }
}

// Would catch a lost wake-up: a worker that sleeps through a call, or a call that waits for it.
void wakes_sleeping_workers() {
  ThreadPool pool(3, 0);
  for (int call = 0; call < 200; ++call) {
    if (call % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int64_t> sum{0};
    pool.parallel_for(100, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) sum += i;
    });
    CHECK(sum == 4950, "sum %d", static_cast<int>(sum));
  }
}

// Would catch a range computed with an earlier call's function, when a thread falls behind.
void late_threads_join_the_right_call() {
  ThreadPool pool(4, 1);
  std::vector<int> marks(64);
  for (int call = 0; call < 5000; ++call) {
    pool.parallel_for(64, [&, call](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) marks[static_cast<size_t>(i)] = call;
    });
    bool current = true;
    for (const int mark : marks) current = current && mark == call;
    CHECK(current, "call %d left marks of another", call);
  }
}

// Would catch a pool whose destructor waits for a sleeping worker for ever.
void stops() {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3, i % 2);
}

}  // namespace

std::vector<Test> thread_tests() {
  return {{"threads: every index once", every_index_once},
          {"threads: wakes sleeping workers", wakes_sleeping_workers},
          {"threads: late threads join the right call", late_threads_join_the_right_call},
          {"threads: stops", stops}};
}

}  // namespace outrider_test
