// What happens to rows between the linear layers, one table of functions per instruction set.
//
// All tables give the same bits. A function works on whole rows or whole heads of one row, so what
// it computes for a row never depends on other rows.

#pragma once

#include <cstdint>

namespace outrider {

// Positions whose softmax is taken at once; longer contexts are merged chunk by chunk in order.
constexpr int kChunk = 128;
// Slots whose keys lie transposed beside each other; block sizes are multiples of it.
constexpr int kSlotGroup = 16;
// Queries that share the loads of one KV head.
constexpr int kMaxQueries = 6;

// The part of one KV head's context that a group of queries reads: groups of 16 slots, each holding
// keys as [head_dim][16] and then values as [16][padded_dim].
struct ContextChunk {
  const void* const* groups;
  int head_dim;
  int padded_dim;
};

// Softmax sums of some queries: weighted values `padded_dim` apart, total weights, and the scores
// that both refer to.
struct SoftmaxSums {
  float* values;
  float* totals;
  float* peaks;
};

struct RowKernels {
  const char* name;

  // output = input / rms(input) * weight; also in place.
  void (*rms_norm)(const float* input, const float* weight, float* output, int size, float eps);
  void (*add)(float* sum, const float* other, int size);
  void (*scale)(float* row, float factor, int size);
  // output = silu(gate) * up; also in place of either.
  void (*gated)(const float* gate, const float* up, float* output, int size);
  // Turns the pairs (i, i + head_dim / 2) of one head.
  void (*rotate)(float* head, const float* cosines, const float* sines, int head_dim);

  // Puts one key (value) into its lane (row) of a slot group.
  void (*store_half)(uint16_t* keys, uint16_t* values, int slot, const float* key,
                     const float* value, int head_dim, int padded_dim);
  void (*store_float)(float* keys, float* values, int slot, const float* key, const float* value,
                      int head_dim, int padded_dim);

  // Attends at most kMaxQueries queries to the first `counts[i]` positions of a chunk. Queries
  // lie `head_dim` apart, already scaled. Where `counts[i]` is 0, the sums stay as they are.
  void (*attend_half)(const ContextChunk& chunk, const float* queries, const int* counts,
                      int num_queries, const SoftmaxSums& sums);
  void (*attend_float)(const ContextChunk& chunk, const float* queries, const int* counts,
                       int num_queries, const SoftmaxSums& sums);
  // Adds query `index` of a chunk's sums to the sums of all earlier chunks.
  void (*merge)(const SoftmaxSums& earlier, const SoftmaxSums& chunk, int index, int padded_dim);
};

// The fastest table this machine can run, or a named one ("portable", "avx2", "avx512").
const RowKernels& row_kernels_portable();
const RowKernels& row_kernels_avx2();
const RowKernels& row_kernels_avx512();

}  // namespace outrider
