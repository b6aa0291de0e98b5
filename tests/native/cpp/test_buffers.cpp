#include <memory>

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

}  // namespace

std::vector<Test> buffer_tests() {
  return {{"buffers: memory is used again", memory_is_used_again},
          {"buffers: a small lease leaves large memory alone",
           a_small_lease_leaves_large_memory_alone}};
}

}  // namespace outrider_test
