// The functions of SampleKernels; see row_kernels.inc.h for how this is included.
//
// Inner loops over eight lanes are plain arrays, which the compiler turns into what vectors there
// are; sums are kept per lane, so their order is the same everywhere.

#include "sample_kernels.h"
#include "vec.h"

namespace {

constexpr int kWideLanes = 8;

bool largest(const float* row, int64_t size, float* value, int64_t* first) {
  Vec tops = splat(-__builtin_inff()), numbers = splat(1.0f);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Vec v = load(row + i);
    tops = max(tops, v);
    numbers = select(v == v, numbers, splat(0.0f));
  }
  float top = max_lanes(tops);
  bool is_number = !any(numbers == splat(0.0f));
  for (; i < size; i++) {
    is_number &= row[i] == row[i];
    top = top < row[i] ? row[i] : top;
  }
  int64_t at = 0;
  for (; at + kLanes <= size && !any(load(row + at) == splat(top)); at += kLanes) {
  }
  while (at < size && row[at] != top) at++;
  *value = top;
  *first = at < size ? at : 0;
  return is_number && __builtin_isfinite(top);
}

// exp(x[i]) for x <= 0, within a unit in the last place or so; below -700 it stays at exp(-700).
OUTRIDER_INLINE void exponentials(double* x) {
  constexpr double kInverse[] = {1.0 / 479001600,
                                 1.0 / 39916800,
                                 1.0 / 3628800,
                                 1.0 / 362880,
                                 1.0 / 40320,
                                 1.0 / 5040,
                                 1.0 / 720,
                                 1.0 / 120,
                                 1.0 / 24,
                                 1.0 / 6,
                                 0.5,
                                 1.0,
                                 1.0};
  double rest[kWideLanes], poly[kWideLanes], scale[kWideLanes];
  for (int i = 0; i < kWideLanes; i++) {
    x[i] = x[i] < -700.0 ? -700.0 : x[i];
    // Adding 1.5 * 2^52 leaves the rounded integer in the low bits of the mantissa.
    const double shifted = x[i] * 1.4426950408889634074 + 6755399441055744.0;
    const double whole = shifted - 6755399441055744.0;
    rest[i] = (x[i] - whole * 6.93145751953125e-1) - whole * 1.42860682030941723212e-6;
    int64_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4338000000000000 + 1023) << 52;
    std::memcpy(scale + i, &bits, sizeof bits);
    poly[i] = 1.0 / 6227020800.0;
  }
  for (const double term : kInverse) {
    for (int i = 0; i < kWideLanes; i++) poly[i] = poly[i] * rest[i] + term;
  }
  for (int i = 0; i < kWideLanes; i++) x[i] = poly[i] * scale[i];
}

// Eight floats from `row`, those past `size` minus infinity.
OUTRIDER_INLINE void load_wide(const float* row, int64_t at, int64_t size, double* wide) {
  if (at + kWideLanes <= size) {
    for (int i = 0; i < kWideLanes; i++) wide[i] = row[at + i];
  } else {
    for (int i = 0; i < kWideLanes; i++) {
      wide[i] = at + i < size ? row[at + i] : -__builtin_inff();
    }
  }
}

double sum_exp(const float* row, int64_t size, double shift) {
  double sums[kWideLanes]{};
  for (int64_t at = 0; at < size; at += kWideLanes) {
    double wide[kWideLanes];
    load_wide(row, at, size, wide);
    for (int i = 0; i < kWideLanes; i++) wide[i] -= shift;
    exponentials(wide);
    for (int i = 0; i < kWideLanes; i++) sums[i] += wide[i];
  }
  double total = 0.0;
  for (int i = 0; i < kWideLanes; i++) total += sums[i];
  return total;
}

int64_t contenders(const float* row, int64_t size, uint64_t key, double bound, uint64_t far,
                   int32_t* indices, uint64_t* words) {
  constexpr int kBlock = 64;
  // A float that is surely below the bound, for the fast look; the exact one follows.
  const float low = static_cast<float>(
      __builtin_isfinite(bound) ? bound - 1e-6 * (1.0 + __builtin_fabs(bound)) : bound);
  int64_t found = 0;
  for (int64_t at = 0; at < size; at += kBlock) {
    const int count = size - at < kBlock ? static_cast<int>(size - at) : kBlock;
    uint64_t block[kBlock], is_far = 0;
    uint32_t is_near = count < kBlock;
    for (int i = 0; i < kBlock; i++) {
      uint64_t state = static_cast<uint64_t>(at + i) * 0x9E3779B97F4A7C15u + key;
      state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
      state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
      block[i] = (state ^ (state >> 31)) >> 11;
    }
    for (int i = 0; i < kBlock; i++) is_far |= block[i] >= far ? 1u : 0u;
    if (count == kBlock) {
      for (int i = 0; i < kBlock; i++) is_near |= row[at + i] >= low ? 1u : 0u;
    }
    if (!is_far && !is_near) continue;
    for (int i = 0; i < count; i++) {
      const float value = row[at + i];
      if ((value < bound && block[i] < far) || value == -__builtin_inff()) continue;
      indices[found] = static_cast<int32_t>(at + i);
      words[found++] = block[i];
    }
  }
  return found;
}

int64_t at_least(const float* row, int64_t size, float border, int32_t* indices) {
  int64_t found = 0;
  for (int64_t at = 0; at < size; at += kLanes) {
    const int count = size - at < kLanes ? static_cast<int>(size - at) : kLanes;
    if (count == kLanes && !any(load(row + at) >= splat(border))) continue;
    for (int i = 0; i < count; i++) {
      if (row[at + i] >= border) indices[found++] = static_cast<int32_t>(at + i);
    }
  }
  return found;
}

constexpr outrider::SampleKernels kSampleTable = {largest, sum_exp, contenders, at_least};

}  // namespace

const outrider::SampleKernels& outrider::OUTRIDER_SAMPLE_TABLE() {
  return kSampleTable;
}
