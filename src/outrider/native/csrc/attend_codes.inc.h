// Attention over keys and values in 16-bit codes. Sums of products of codes are exact integers, so
// their order is free; what is added in float32 (dimensions beyond the first 64, the exponentials
// of a chunk, chunks) has one order. Included by row_kernels.inc.h.

#include "row_kernels.h"
#include "vec.h"

namespace {

using outrider::CodeGroup;
using outrider::ContextChunk;
using outrider::kChunk;
using outrider::kExactDims;
using outrider::kLargestCode;
using outrider::kLargestQueryCode;
using outrider::kLargestWeightCode;
using outrider::kMaxQueries;
using outrider::kSlotGroup;
using outrider::SoftmaxSums;

constexpr int kLineBytes = 64;

// How many key groups, and vectors of a value, have their sums in registers at once.
constexpr int at_once(int queries) {
  return kPartLanes == kLanes || queries == 1 ? 4 : queries <= 3 ? 2 : 1;
}

struct CodeScale {
  float scale;    // What a code stands for.
  float inverse;  // Zero where it would overflow.
};

CodeScale scale_for(float largest, float largest_code) {
  return {largest * (1.0f / largest_code), largest > 1e-30f ? largest_code / largest : 0.0f};
}

// The scale for some numbers; not a number, or infinite, if one of them is.
OUTRIDER_INLINE CodeScale scale_of(const float* numbers, int size, float largest_code) {
  Vec magnitudes = splat(0.0f);
  for_vectors(size, [&](int at, int count) {
    magnitudes = larger_magnitude(magnitudes, load_up_to(numbers + at, count));
  });
  return scale_for(largest_lane(magnitudes), largest_code);
}

void round_query(const float* query, float* rounded, int head_dim) {
  char* codes = reinterpret_cast<char*>(rounded);
  const CodeScale own = scale_of(query, head_dim, kLargestQueryCode);
  for_vectors(head_dim, [&](int at, int count) {
    int16_t some[kLanes];
    round_codes(some, load_up_to(query + at, count) * own.inverse);
    std::memcpy(codes + at * sizeof(int16_t), some, sizeof(int16_t) * count);
  });
  std::memcpy(codes + head_dim * sizeof(int16_t), &own.scale, sizeof own.scale);
}

void store_codes(void* group, int slot, const float* key, const float* value, int head_dim,
                 int padded_dim) {
  const CodeGroup layout{head_dim, padded_dim};
  char* start = static_cast<char*>(group);
  auto* keys = reinterpret_cast<int16_t*>(start) + 2 * slot;
  auto* values = reinterpret_cast<int16_t*>(start + layout.values_at()) +
                 static_cast<long>(slot / 2) * padded_dim * 2 + slot % 2;
  const CodeScale of_key = scale_of(key, head_dim, kLargestCode);
  const CodeScale of_value = scale_of(value, head_dim, kLargestCode);
  for_vectors(head_dim, [&](int at, int count) {
    int16_t some[kLanes];
    round_codes(some, load_up_to(key + at, count) * of_key.inverse);
    for (int i = 0; i < count; i++) keys[(at + i) / 2 * 2 * kSlotGroup + i % 2] = some[i];
    round_codes(some, load_up_to(value + at, count) * of_value.inverse);
    for (int i = 0; i < count; i++) values[2 * (at + i)] = some[i];
  });
  reinterpret_cast<float*>(start + layout.key_scales_at())[slot] = of_key.scale;
  reinterpret_cast<float*>(start + layout.value_scales_at())[slot] = of_value.scale;
}

// What a block of queries makes of a chunk before the values are looked at.
struct ChunkWeights {
  alignas(64) float scores[kMaxQueries][kChunk];
  alignas(64) int16_t codes[kMaxQueries][kChunk];
  float scales[kMaxQueries];
};

// Products of `kQueries` queries with `kGroups` groups of sixteen keys, without their scales.
template <int kQueries, int kGroups>
OUTRIDER_INLINE void score(const ContextChunk& chunk, const CodeGroup& layout, int first,
                           int num_groups, const float* queries, ChunkWeights& weights) {
  const char* keys[kGroups];
  for (int g = 0; g < kGroups; g++) keys[g] = static_cast<const char*>(chunk.groups[first + g]);
  const int next = first + 2 * kGroups <= num_groups ? kGroups : 0;
  const long values_at = layout.values_at();
  const auto* const pairs = reinterpret_cast<const char*>(queries);
  const long query_bytes = static_cast<long>(sizeof(float)) * chunk.head_dim;
  for (int begin = 0; begin < chunk.head_dim; begin += kExactDims) {
    const int end = begin + kExactDims < chunk.head_dim ? begin + kExactDims : chunk.head_dim;
    Ints sums[kQueries][kGroups];
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; q++) {
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; g++) sums[q][g] = no_ints();
    }
    for (int pair = begin / 2; pair < end / 2; pair++) {
      const long line = static_cast<long>(pair) * kLineBytes;
      Ints key[kGroups];
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; g++) {
        // The cache of a layer was last read a whole forward ago: it comes from memory.
        __builtin_prefetch(keys[g] + values_at + line);
        __builtin_prefetch(static_cast<const char*>(chunk.groups[first + g + next]) + line);
        key[g] = load_ints(keys[g] + line);
      }
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; q++) {
        const Ints query = splat_pair(pairs + q * query_bytes + pair * sizeof(int32_t));
#pragma GCC unroll 8
        for (int g = 0; g < kGroups; g++) sums[q][g] = add_pair_products(sums[q][g], key[g], query);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < kQueries; q++) {
      float* scores = weights.scores[q] + first * kSlotGroup;
#pragma GCC unroll 8
      for (int g = 0; g < kGroups; g++, scores += kSlotGroup) {
        store(scores, begin ? load(scores) + floats(sums[q][g]) : floats(sums[q][g]));
      }
    }
  }
}

// Turns the first `count` scores of a query into codes of their weights, each times the scale of
// its value. Weights beyond are zero: what a query must not see may be anything.
OUTRIDER_INLINE void soften(const ContextChunk& chunk, const CodeGroup& layout, const float* query,
                            int count, float* scores, int16_t* codes, float* code_scale,
                            float* total, float* peak) {
  float query_scale;
  std::memcpy(&query_scale, reinterpret_cast<const char*>(query) + 2 * chunk.head_dim,
              sizeof query_scale);
  const auto scales = [&](int at, long where) {
    const char* group = static_cast<const char*>(chunk.groups[at / kSlotGroup]);
    return reinterpret_cast<const float*>(group + where);
  };
  const Vec lowest = splat(-__builtin_inff());
  Vec peaks = lowest;
  for_vectors(count, [&](int at, int lanes) {
    const Vec scale = load(scales(at, layout.key_scales_at())) * query_scale;
    const Vec scaled = load(scores + at) * scale;
    store(scores + at, scaled);
    peaks = max(lanes == kLanes ? scaled : first_lanes(scaled, lanes, lowest), peaks);
  });
  const float top = max_lanes(peaks);
  *peak = top;
  Vec totals = splat(0.0f), largest = splat(0.0f);
  for_vectors(count, [&](int at, int lanes) {
    Vec weight = exponential(load(scores + at) - top);
    Vec scale = load(scales(at, layout.value_scales_at()));
    if (lanes < kLanes) {
      weight = first_lanes(weight, lanes, splat(0.0f));
      scale = first_lanes(scale, lanes, splat(0.0f));
    }
    totals += weight;
    const Vec scaled = weight * scale;
    largest = larger_magnitude(largest, scaled);
    store(scores + at, scaled);
  });
  *total = sum_lanes(totals);
  const CodeScale own = scale_for(largest_lane(largest), kLargestWeightCode);
  *code_scale = own.scale;
  int at = 0;
  for (; at < count; at += kLanes) round_codes(codes + at, load(scores + at) * own.inverse);
  for (; at < kChunk; at += kLanes) std::memset(codes + at, 0, sizeof(int16_t) * kLanes);
}

// Adds up `kVecs` vectors of the values of the first `num_pairs` pairs of positions.
template <int kQueries, int kVecs>
OUTRIDER_INLINE void weigh(const ContextChunk& chunk, const CodeGroup& layout, int first,
                           int num_pairs, const int* counts, const ChunkWeights& weights,
                           float* values) {
  constexpr int kPairs = kSlotGroup / 2;
  Ints sums[kQueries][kVecs];
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; v++) sums[q][v] = no_ints();
  }
  const long start = layout.values_at() + static_cast<long>(first) * kLineBytes;
  const long stride = static_cast<long>(chunk.padded_dim) * 2 * sizeof(int16_t);
  for (int pair = 0; pair < num_pairs;) {
    const char* row = static_cast<const char*>(chunk.groups[pair / kPairs]) + start;
    const int stop = num_pairs < pair + kPairs ? num_pairs : pair + kPairs;
    for (; pair < stop; pair++, row += stride) {
      Ints value[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; v++) value[v] = load_ints(row + v * kLineBytes);
#pragma GCC unroll 8
      for (int q = 0; q < kQueries; q++) {
        const Ints weight = splat_pair(weights.codes[q] + 2 * pair);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; v++) sums[q][v] = add_pair_products(sums[q][v], value[v], weight);
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < kQueries; q++) {
    if (!counts[q]) continue;
    for (int v = 0; v < kVecs; v++) {
      store(values + q * chunk.padded_dim + (first + v) * kLanes,
            floats(sums[q][v]) * weights.scales[q]);
    }
  }
}

template <int kQueries>
void attend_block(const ContextChunk& chunk, const float* queries, const int* counts,
                  const SoftmaxSums& sums) {
  const CodeGroup layout{chunk.head_dim, chunk.padded_dim};
  ChunkWeights weights;
  int longest = counts[0];
  for (int q = 1; q < kQueries; q++) longest = counts[q] > longest ? counts[q] : longest;
  const int num_groups = (longest + kSlotGroup - 1) / kSlotGroup;
  constexpr int kAtOnce = at_once(kQueries);
  int group = 0;
  for (; group + kAtOnce <= num_groups; group += kAtOnce) {
    score<kQueries, kAtOnce>(chunk, layout, group, num_groups, queries, weights);
  }
  for (; group < num_groups; group++) {
    score<kQueries, 1>(chunk, layout, group, num_groups, queries, weights);
  }
  for (int q = 0; q < kQueries; q++) {
    float unused_total, unused_peak;
    soften(chunk, layout, queries + static_cast<long>(q) * chunk.head_dim, counts[q],
           weights.scores[q], weights.codes[q], weights.scales + q,
           counts[q] ? sums.totals + q : &unused_total, counts[q] ? sums.peaks + q : &unused_peak);
  }
  const int num_vecs = chunk.padded_dim / kLanes, num_pairs = (longest + 1) / 2;
  int vec = 0;
  for (; vec + kAtOnce <= num_vecs; vec += kAtOnce) {
    weigh<kQueries, kAtOnce>(chunk, layout, vec, num_pairs, counts, weights, sums.values);
  }
  for (; vec < num_vecs; vec++) {
    weigh<kQueries, 1>(chunk, layout, vec, num_pairs, counts, weights, sums.values);
  }
}

void attend_codes(const ContextChunk& chunk, const float* queries, const int* counts,
                  int num_queries, const SoftmaxSums& sums) {
  switch (num_queries) {
    case 1:
      return attend_block<1>(chunk, queries, counts, sums);
    case 2:
      return attend_block<2>(chunk, queries, counts, sums);
    case 3:
      return attend_block<3>(chunk, queries, counts, sums);
    case 4:
      return attend_block<4>(chunk, queries, counts, sums);
    case 5:
      return attend_block<5>(chunk, queries, counts, sums);
    default:
      return attend_block<6>(chunk, queries, counts, sums);
  }
}

}  // namespace
