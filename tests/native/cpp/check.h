// The little that the tests of the compute core need: checks, a list of tests, random numbers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace outrider_test {

struct Test {
  const char* name;
  void (*run)();
};

inline int& failures() {
  static int count = 0;
  return count;
}

#define CHECK(condition, ...)                                     \
  do {                                                            \
    if (!(condition)) {                                           \
      ++outrider_test::failures();                                \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(__VA_ARGS__);                                   \
      std::printf("\n");                                          \
    }                                                             \
  } while (false)

// splitmix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound));
  }
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 40) * 0x1p-24f;
  }
  std::vector<float> floats(int64_t count, float low = -1.0f, float high = 1.0f) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform(low, high);
    return values;
  }

 private:
  uint64_t state_;
};

inline bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

std::vector<Test> thread_tests();
std::vector<Test> buffer_tests();
std::vector<Test> pack_tests();
std::vector<Test> gemm_tests();
std::vector<Test> draft_tests();

}  // namespace outrider_test
