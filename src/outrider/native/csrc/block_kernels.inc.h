// The functions of BlockKernels; see row_kernels.inc.h for how this is included.

#include "block_kernels.h"
#include "vec.h"

namespace {

float dot(const float* x, const float* row, int size) {
  Vec sums = splat(0.0f);
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += load(x + i) * load(row + i);
  if (i < size) {
    const Vec none = splat(0.0f);
    sums += load_some(x + i, size - i, none) * load_some(row + i, size - i, none);
  }
  return sum_lanes(sums);
}

// The first `count` lanes in half precision, the others zero.
OUTRIDER_INLINE Vec load_some_halves(const uint16_t* from, int count) {
  uint16_t lanes[kLanes]{};
  std::memcpy(lanes, from, sizeof(uint16_t) * count);
  return load(lanes);
}

float dot_half(const float* x, const uint16_t* half, int size) {
  Vec sums = splat(0.0f);
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) sums += load(x + i) * load(half + i);
  if (i < size) {
    sums += load_some(x + i, size - i, splat(0.0f)) * load_some_halves(half + i, size - i);
  }
  return sum_lanes(sums);
}

void widen(const uint16_t* half, float* output, int size) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(output + i, load(half + i));
  if (i < size) store_some(output + i, load_some_halves(half + i, size - i), size - i);
}

void stripe_peaks(const float* row, int64_t size, float* peaks) {
  constexpr int kVecs = outrider::kStripes / kLanes;
  Vec tops[kVecs];
  for (int v = 0; v < kVecs; v++) tops[v] = splat(-__builtin_inff());
  int64_t at = 0;
  for (; at + outrider::kStripes <= size; at += outrider::kStripes) {
    for (int v = 0; v < kVecs; v++) tops[v] = max(tops[v], load(row + at + v * kLanes));
  }
  for (int v = 0; v < kVecs; v++) store(peaks + v * kLanes, tops[v]);
  for (int64_t i = at; i < size; i++) {
    float& peak = peaks[i % outrider::kStripes];
    peak = peak < row[i] ? row[i] : peak;
  }
}

constexpr outrider::BlockKernels kBlockTable = {dot, dot_half, widen, stripe_peaks};

}  // namespace

const outrider::BlockKernels& outrider::OUTRIDER_BLOCK_TABLE() {
  return kBlockTable;
}
