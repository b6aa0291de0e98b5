// The functions of RowKernels. Included by one source file per instruction set, which defines
// OUTRIDER_TABLE and OUTRIDER_TABLE_NAME. Nothing with code in standard headers may be used here:
// the linker would keep one copy, of any instruction set, for all.

#include "row_kernels.h"
#include "vec.h"

namespace {

using outrider::ContextChunk;
using outrider::kChunk;
using outrider::kMaxQueries;
using outrider::kSlotGroup;
using outrider::SoftmaxSums;

// How many key groups, and vectors of a value, have their sums in registers at once.
constexpr int at_once(int queries) {
  return kPartLanes == kLanes || queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}

// Calls `body(offset, count)` for every vector of a row, the last one possibly partial.
template <class Body>
OUTRIDER_INLINE void for_vectors(int size, Body body) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, kLanes);
  if (i < size) body(i, size - i);
}

OUTRIDER_INLINE Vec load_up_to(const float* from, int count) {
  return count == kLanes ? load(from) : load_some(from, count, splat(0.0f));
}

OUTRIDER_INLINE void store_up_to(float* to, Vec value, int count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    store_some(to, value, count);
  }
}

void rms_norm(const float* input, const float* weight, float* output, int size, float eps) {
  Vec squares = splat(0.0f), more = splat(0.0f);
  int i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    const Vec first = load(input + i), second = load(input + i + kLanes);
    squares += first * first;
    more += second * second;
  }
  squares += more;
  for_vectors(size - i, [&](int at, int count) {
    const Vec v = load_up_to(input + i + at, count);
    squares += v * v;
  });
  const float mean = sum_lanes(squares) / static_cast<float>(size);
  const float inverse = 1.0f / __builtin_sqrtf(mean + eps);
  for_vectors(size, [&](int at, int count) {
    const Vec v = load_up_to(input + at, count) * inverse;
    store_up_to(output + at, v * load_up_to(weight + at, count), count);
  });
}

void add(float* sum, const float* other, int size) {
  for_vectors(size, [&](int at, int count) {
    store_up_to(sum + at, load_up_to(sum + at, count) + load_up_to(other + at, count), count);
  });
}

void scale(float* row, float factor, int size) {
  for_vectors(size, [&](int at, int count) {
    store_up_to(row + at, load_up_to(row + at, count) * factor, count);
  });
}

void gated(const float* gate, const float* up, float* output, int size) {
  for_vectors(size, [&](int at, int count) {
    const Vec g = load_up_to(gate + at, count);
    const Vec silu = g / (exponential(splat(0.0f) - g) + 1.0f);
    store_up_to(output + at, silu * load_up_to(up + at, count), count);
  });
}

void rotate(float* head, const float* cosines, const float* sines, int head_dim) {
  const int half = head_dim / 2;
  for_vectors(half, [&](int at, int count) {
    const Vec left = load_up_to(head + at, count), right = load_up_to(head + half + at, count);
    const Vec cosine = load_up_to(cosines + at, count), sine = load_up_to(sines + at, count);
    store_up_to(head + at, left * cosine - right * sine, count);
    store_up_to(head + half + at, right * cosine + left * sine, count);
  });
}

void store_half(uint16_t* keys, uint16_t* values, int slot, const float* key, const float* value,
                int head_dim, int padded_dim) {
  for_vectors(head_dim, [&](int at, int count) {
    uint16_t halves[kLanes];
    store_half_lanes(halves, load_up_to(key + at, count));
    for (int i = 0; i < count; i++) keys[(at + i) * kSlotGroup + slot] = halves[i];
    store_half_lanes(values + slot * padded_dim + at, load_up_to(value + at, count));
  });
}

void store_float(float* keys, float* values, int slot, const float* key, const float* value,
                 int head_dim, int padded_dim) {
  for (int i = 0; i < head_dim; i++) keys[i * kSlotGroup + slot] = key[i];
  std::memcpy(values + slot * padded_dim, value, sizeof(float) * head_dim);
}

// Sixteen numbers of a group that share a line of the cache.
template <class T>
constexpr int kRowsPerLine = 64 / (kSlotGroup * sizeof(T));

using Weights = float[kMaxQueries][kChunk];

// Scores of `kQueries` queries against `kGroups` groups of sixteen keys.
template <class T, int kQueries, int kGroups>
OUTRIDER_INLINE void score(const ContextChunk& chunk, int first, int num_groups,
                           const float* queries, Weights& scores) {
  Vec sums[kQueries][kGroups];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; g++) sums[q][g] = splat(0.0f);
  }
  const T* keys[kGroups];
  for (int g = 0; g < kGroups; g++) keys[g] = static_cast<const T*>(chunk.groups[first + g]);
  const int head_dim = chunk.head_dim;
  const long values = static_cast<long>(head_dim) * kSlotGroup;
  const long next = first + 2 * kGroups <= num_groups ? kGroups : 0;
  for (int d = 0; d < head_dim; d++) {
    // The cache of a layer was last read a whole forward ago: it comes from memory.
    if (d % kRowsPerLine<T> == 0) {
      for (int g = 0; g < kGroups; g++) {
        __builtin_prefetch(keys[g] + values + d * kSlotGroup);
        const void* later = chunk.groups[first + g + next];
        __builtin_prefetch(static_cast<const T*>(later) + d * kSlotGroup);
      }
    }
    Vec key[kGroups];
#pragma GCC unroll 8
    for (int g = 0; g < kGroups; g++) key[g] = load(keys[g] + d * kSlotGroup);
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; q++) {
      const Vec query = splat(queries[q * head_dim + d]);
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; g++) sums[q][g] += query * key[g];
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
    for (int g = 0; g < kGroups; g++) store(scores[q] + (first + g) * kSlotGroup, sums[q][g]);
  }
}

// Turns the first `count` scores into weights; returns their total and the largest score.
OUTRIDER_INLINE void soften(float* scores, int count, float* total, float* peak) {
  Vec peaks = splat(-__builtin_inff());
  for_vectors(count, [&](int at, int lanes) {
    const Vec lowest = splat(-__builtin_inff());
    const Vec own = lanes == kLanes ? load(scores + at) : load_some(scores + at, lanes, lowest);
    peaks = max(own, peaks);
  });
  *peak = max_lanes(peaks);
  Vec totals = splat(0.0f);
  for_vectors(count, [&](int at, int lanes) {
    const Vec weight = exponential(load_up_to(scores + at, lanes) - *peak);
    store_up_to(scores + at, weight, lanes);
    totals += lanes == kLanes ? weight : load_up_to(scores + at, lanes);
  });
  *total = sum_lanes(totals);
}

// Adds up `kVecs` vectors of the values, position by position in order.
template <class T, int kQueries, int kVecs>
OUTRIDER_INLINE void weigh(const ContextChunk& chunk, int first, const int* counts,
                           const Weights& weights, float* values) {
  Vec sums[kQueries][kVecs];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; v++) sums[q][v] = splat(0.0f);
  }
  int common = counts[0], longest = counts[0];
  for (int q = 1; q < kQueries; q++) {
    common = counts[q] < common ? counts[q] : common;
    longest = counts[q] > longest ? counts[q] : longest;
  }
  const long start = static_cast<long>(chunk.head_dim) * kSlotGroup + first * kLanes;
  int position = 0;
  while (position < common) {
    const T* row = static_cast<const T*>(chunk.groups[position / kSlotGroup]) + start;
    const int stop = common < position + kSlotGroup ? common : position + kSlotGroup;
    for (; position < stop; position++, row += chunk.padded_dim) {
      Vec value[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; v++) value[v] = load(row + v * kLanes);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; q++) {
        const Vec weight = splat(weights[q][position]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; v++) sums[q][v] += weight * value[v];
      }
    }
  }
  // What a query must not see is never touched, not even with a weight of zero: it may be NaN.
  for (; position < longest; position++) {
    const T* row = static_cast<const T*>(chunk.groups[position / kSlotGroup]) + start +
                   (position % kSlotGroup) * chunk.padded_dim;
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; q++) {
      if (position >= counts[q]) continue;
      const Vec weight = splat(weights[q][position]);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; v++) sums[q][v] += weight * load(row + v * kLanes);
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
    if (!counts[q]) continue;
    for (int v = 0; v < kVecs; v++) {
      store(values + q * chunk.padded_dim + (first + v) * kLanes, sums[q][v]);
    }
  }
}

template <class T, int kQueries>
void attend_block(const ContextChunk& chunk, const float* queries, const int* counts,
                  const SoftmaxSums& sums) {
  alignas(64) Weights weights;
  int longest = counts[0];
  for (int q = 1; q < kQueries; q++) longest = counts[q] > longest ? counts[q] : longest;
  const int num_groups = (longest + kSlotGroup - 1) / kSlotGroup;
  constexpr int kAtOnce = at_once(kQueries);
  int group = 0;
  for (; group + kAtOnce <= num_groups; group += kAtOnce) {
    score<T, kQueries, kAtOnce>(chunk, group, num_groups, queries, weights);
  }
  for (; group < num_groups; group++)
    score<T, kQueries, 1>(chunk, group, num_groups, queries, weights);
  for (int q = 0; q < kQueries; q++) {
    if (counts[q]) soften(weights[q], counts[q], sums.totals + q, sums.peaks + q);
  }
  const int num_vecs = chunk.padded_dim / kLanes;
  int vec = 0;
  for (; vec + kAtOnce <= num_vecs; vec += kAtOnce) {
    weigh<T, kQueries, kAtOnce>(chunk, vec, counts, weights, sums.values);
  }
  for (; vec < num_vecs; vec++) {
    weigh<T, kQueries, 1>(chunk, vec, counts, weights, sums.values);
  }
}

template <class T>
void attend(const ContextChunk& chunk, const float* queries, const int* counts, int num_queries,
            const SoftmaxSums& sums) {
  switch (num_queries) {
    case 1:
      return attend_block<T, 1>(chunk, queries, counts, sums);
    case 2:
      return attend_block<T, 2>(chunk, queries, counts, sums);
    case 3:
      return attend_block<T, 3>(chunk, queries, counts, sums);
    case 4:
      return attend_block<T, 4>(chunk, queries, counts, sums);
    case 5:
      return attend_block<T, 5>(chunk, queries, counts, sums);
    default:
      return attend_block<T, 6>(chunk, queries, counts, sums);
  }
}

void merge(const SoftmaxSums& earlier, const SoftmaxSums& chunk, int index, int padded_dim) {
  float* peak = earlier.peaks + index;
  const float chunk_peak = chunk.peaks[index];
  const float top = *peak < chunk_peak ? chunk_peak : *peak;
  const float keep = first_lane(exponential(splat(*peak - top)));
  const float gain = first_lane(exponential(splat(chunk_peak - top)));
  float* values = earlier.values + static_cast<long>(index) * padded_dim;
  const float* more = chunk.values + static_cast<long>(index) * padded_dim;
  for (int i = 0; i < padded_dim; i += kLanes) {
    store(values + i, load(values + i) * keep + load(more + i) * gain);
  }
  earlier.totals[index] = earlier.totals[index] * keep + chunk.totals[index] * gain;
  *peak = top;
}

constexpr outrider::RowKernels kTable = {
    OUTRIDER_TABLE_NAME, rms_norm,         add,           scale, gated, rotate, store_half,
    store_float,         attend<uint16_t>, attend<float>, merge,
};

}  // namespace

const outrider::RowKernels& outrider::OUTRIDER_TABLE() {
  return kTable;
}
