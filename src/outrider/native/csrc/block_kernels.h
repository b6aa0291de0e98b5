// What the heads of a block drafter do over rows, one table per instruction set; all give the same
// bits.

#pragma once

#include <cstdint>

namespace outrider {

// Classes that a row of logits is cut into; the largest of each bounds the largest of the row.
constexpr int kStripes = 128;

struct BlockKernels {
  // Sum of x[i] * row[i], and of x[i] * half[i] for numbers in half precision.
  float (*dot)(const float* x, const float* row, int size);
  float (*dot_half)(const float* x, const uint16_t* half, int size);
  void (*widen)(const uint16_t* half, float* output, int size);
  // peaks[s]: the largest of row[i] with i % kStripes == s; minus infinity where there is none.
  // NaN counts as larger than everything or as nothing.
  void (*stripe_peaks)(const float* row, int64_t size, float* peaks);
};

const BlockKernels& block_kernels_portable();
const BlockKernels& block_kernels_avx2();
const BlockKernels& block_kernels_avx512();

}  // namespace outrider
