// Attention over float32 keys and values: what the codes of attend_codes.inc.h are compared with,
// written for clarity, one query at a time. Included by row_kernels.inc.h.

#include "row_kernels.h"
#include "vec.h"

namespace {

void store_float(void* group, int slot, const float* key, const float* value, int head_dim,
                 int padded_dim) {
  auto* keys = static_cast<float*>(group);
  for (int i = 0; i < head_dim; i++) keys[i * kSlotGroup + slot] = key[i];
  std::memcpy(keys + head_dim * kSlotGroup + static_cast<long>(slot) * padded_dim, value,
              sizeof(float) * head_dim);
}

// Turns the first `count` scores into weights; returns their total and the largest score.
OUTRIDER_INLINE void soften(float* scores, int count, float* total, float* peak) {
  const Vec lowest = splat(-__builtin_inff());
  Vec peaks = lowest;
  for_vectors(count, [&](int at, int lanes) {
    peaks = max(first_lanes(load(scores + at), lanes, lowest), peaks);
  });
  *peak = max_lanes(peaks);
  Vec totals = splat(0.0f);
  for_vectors(count, [&](int at, int lanes) {
    const Vec weight = first_lanes(exponential(load(scores + at) - *peak), lanes, splat(0.0f));
    store(scores + at, weight);
    totals += weight;
  });
  *total = sum_lanes(totals);
}

void attend_float_query(const ContextChunk& chunk, const float* query, int count, float* values,
                        float* total, float* peak) {
  alignas(64) float scores[kChunk];
  const auto group_of = [&](int position) {
    return static_cast<const float*>(chunk.groups[position / kSlotGroup]);
  };
  for (int at = 0; at < count; at += kSlotGroup) {
    const float* keys = group_of(at);
    Vec sum = splat(0.0f);
    for (int d = 0; d < chunk.head_dim; d++) sum += load(keys + d * kSlotGroup) * query[d];
    store(scores + at, sum);
  }
  soften(scores, count, total, peak);
  for (int first = 0; first < chunk.padded_dim; first += kLanes) {
    Vec sum = splat(0.0f);
    // What a query must not see is never touched, not even with a weight of zero: it may be NaN.
    for (int position = 0; position < count; position++) {
      const float* value = group_of(position) + chunk.head_dim * kSlotGroup +
                           static_cast<long>(position % kSlotGroup) * chunk.padded_dim;
      sum += load(value + first) * scores[position];
    }
    store(values + first, sum);
  }
}

void attend_float(const ContextChunk& chunk, const float* queries, const int* counts,
                  int num_queries, const SoftmaxSums& sums) {
  for (int q = 0; q < num_queries; q++) {
    if (!counts[q]) continue;
    attend_float_query(chunk, queries + static_cast<long>(q) * chunk.head_dim, counts[q],
                       sums.values + static_cast<long>(q) * chunk.padded_dim, sums.totals + q,
                       sums.peaks + q);
  }
}

}  // namespace
