#include <memory>
#include <set>
#include <vector>

#include "buffers.h"
#include "check.h"

namespace outrider_test {

namespace {

using outrider::Buffers;

// Would catch memory that is mapped anew for every call.
void memory_is_used_again() {
  const auto buffers = std::make_shared<Buffers>();
  const float* first = buffers->lease(1000)->data();
  CHECK(buffers->lease(900)->data() == first, "%d numbers got other memory", 900);
}

// Would catch features that are kept for many steps in the memory that the logits of each need.
void a_small_lease_leaves_large_memory_alone() {
  const auto buffers = std::make_shared<Buffers>();
  const float* large = buffers->lease(100000)->data();
  const auto kept = buffers->lease(100);
  CHECK(kept->data() != large, "a lease of %d numbers got the large memory", 100);
  CHECK(buffers->lease(100000)->data() == large, "the memory of %d numbers is gone", 100000);
}

// Would catch windows of changing size that map their memory anew in every step.
void changing_sizes_use_memory_again() {
  const auto buffers = std::make_shared<Buffers>();
  std::set<const float*> seen;
  for (int sweep = 0; sweep < 3; sweep++) {
    if (sweep == 1) seen.clear();
    std::set<const float*> now;
    for (int rows = 1; rows <= 64; rows++) now.insert(buffers->lease(1000 * rows)->data());
    if (sweep == 2) CHECK(now == seen, "a sweep over %d sizes got other memory", 64);
    seen = now;
  }
}

// Would catch small results of many steps that push out the memory of the logits.
void many_small_leases_leave_large_memory_alone() {
  const auto buffers = std::make_shared<Buffers>();
  const float* large = buffers->lease(100000)->data();
  {
    std::vector<std::unique_ptr<Buffers::Lease>> kept;
    for (int i = 0; i < 20; i++) kept.push_back(buffers->lease(100));
  }
  CHECK(buffers->lease(100000)->data() == large, "the memory of %d numbers is gone", 100000);
}

// Would catch features that a drafter keeps for many steps being mapped anew for each.
void memory_kept_for_many_steps_is_used_again() {
  const auto buffers = std::make_shared<Buffers>();
  std::set<const float*> seen[2];
  std::vector<std::vector<float>> others;  // take the places of what was given back to the system
  for (auto& now : seen) {
    std::vector<std::unique_ptr<Buffers::Lease>> kept;
    for (int i = 0; i < 100; i++) kept.push_back(buffers->lease(40000));
    for (const auto& each : kept) now.insert(each->data());
    kept.clear();
    for (int i = 0; i < 100; i++) others.emplace_back(40000);
  }
  CHECK(seen[0] == seen[1], "%d leases got other memory", 100);
}

}  // namespace

std::vector<Test> buffer_tests() {
  return {{"buffers: memory is used again", memory_is_used_again},
          {"buffers: a small lease leaves large memory alone",
           a_small_lease_leaves_large_memory_alone},
          {"buffers: changing sizes use memory again", changing_sizes_use_memory_again},
          {"buffers: memory kept for many steps is used again",
           memory_kept_for_many_steps_is_used_again},
          {"buffers: many small leases leave large memory alone",
           many_small_leases_leave_large_memory_alone}};
}

}  // namespace outrider_test
