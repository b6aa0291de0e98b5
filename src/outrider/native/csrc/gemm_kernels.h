// The kernels of one instruction-set level, as a table of functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu.h"
#include "pack_layout.h"

namespace outrider {

// Window rows that one kernel call handles together, at most.
constexpr int kGroupRows = 8;
constexpr int kWeightTypes = 10;

// Up to kGroupRows window rows as the kernels read them. For quantised weights, entry
// [block][row] of each array, `rows` rows per block:
struct RowGroup {
  int rows = 0;
  const int8_t* codes = nullptr;            // 32 per entry
  const float* scales = nullptr;            // x is about scale * code
  const float* sums = nullptr;              // scale * sum of codes
  const int32_t* negated = nullptr;         // minus the sum of codes
  const int32_t* negated_halves = nullptr;  // the same of codes 0..15 and of 16..31: 2 per entry
  const float* plain = nullptr;             // for BF16 and F32 weights: x[row * plain_stride + in]
  int64_t plain_stride = 0;
};

// Where `quantize` puts one row of a group: the arrays of RowGroup.
struct RowTarget {
  int rows = 0;
  int8_t* codes = nullptr;
  float* scales = nullptr;
  float* sums = nullptr;
  int32_t* negated = nullptr;
  int32_t* negated_halves = nullptr;
};

// One tile of weights times one group of rows.
struct TileCall {
  const uint8_t* tile = nullptr;
  int64_t in_features = 0;
  RowGroup group;
  float* y = nullptr;  // y[row * ld + output]
  int64_t ld = 0;
  int outputs = 0;  // of the tile that exist: 16, or fewer in the last tile
  bool accumulate = false;
  const uint8_t* prefetch = nullptr;  // memory to fetch meanwhile
  size_t prefetch_step = 0;           // bytes of it per chunk
};

using TileKernel = void (*)(const TileCall& call);

struct GemmKernels {
  // Rounds blocks begin .. end - 1 of the row `x` into place `row` of a group.
  void (*quantize)(const float* x, int64_t begin, int64_t end, int row, const RowTarget& target);
  // By weight type and rows in the group, less one.
  TileKernel tile[kWeightTypes][kGroupRows];
};

// The kernels of that level, or nullptr when this build has none. Whether the machine can run them
// is not looked at.
const GemmKernels* gemm_kernels(Isa isa);

}  // namespace outrider
