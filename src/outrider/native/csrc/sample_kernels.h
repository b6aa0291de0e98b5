// The passes of sampling that go over a whole vocabulary, one table per instruction set.

#pragma once

#include <cstdint>

namespace outrider {

struct SampleKernels {
  // The largest of a row and whether it is a finite number; NaN anywhere makes it not finite.
  // `first` is the lowest index of the largest.
  bool (*largest)(const float* row, int64_t size, float* value, int64_t* first);
  // Sum of exp(row[i] - shift) in float64.
  double (*sum_exp)(const float* row, int64_t size, double shift);
  // Indices whose value is at least `bound`, or whose noise word is at least `far`, minus
  // infinity excepted; ascending. Returns their number; `words` takes the noise words.
  int64_t (*contenders)(const float* row, int64_t size, uint64_t key, double bound, uint64_t far,
                        int32_t* indices, uint64_t* words);
  // Indices with a value of at least `border`; returns their number.
  int64_t (*at_least)(const float* row, int64_t size, float border, int32_t* indices);
};

const SampleKernels& sample_kernels_portable();
const SampleKernels& sample_kernels_avx2();
const SampleKernels& sample_kernels_avx512();

// The 53-bit noise word of a token under a key; see sampling/noise.py.
inline uint64_t noise_word(uint64_t key, uint64_t token) {
  uint64_t state = token * 0x9E3779B97F4A7C15u + key;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return (state ^ (state >> 31)) >> 11;
}

}  // namespace outrider
