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

// Numbers of a key, and positions of a chunk, whose products are added up as integers: codes of
// queries reach 8190, of keys and values 4094, of weights 4095, so that a sum stays below 2^31.
constexpr int kExactDims = 64;
constexpr float kLargestCode = 4094.0f;
constexpr float kLargestQueryCode = 8190.0f;
constexpr float kLargestWeightCode = 4095.0f;

// How 16 slots of one KV head lie in memory. As float32: keys as [head_dim][16], then values as
// [16][padded_dim]. As 16-bit codes: keys as [head_dim / 2][16] pairs of neighbouring dimensions,
// a scale per key, a scale per value, values as [8][padded_dim] pairs of neighbouring slots.
struct CodeGroup {
  int head_dim, padded_dim;

  long key_scales_at() const { return 2L * head_dim * kSlotGroup; }
  long value_scales_at() const { return key_scales_at() + 4L * kSlotGroup; }
  long values_at() const { return value_scales_at() + 4L * kSlotGroup; }
  long bytes() const { return values_at() + 2L * padded_dim * kSlotGroup; }
};

// The part of one KV head's context that a group of queries reads.
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
  void (*store_codes)(void* group, int slot, const float* key, const float* value, int head_dim,
                      int padded_dim);
  void (*store_float)(void* group, int slot, const float* key, const float* value, int head_dim,
                      int padded_dim);

  // Rounds a query: its codes, and its scale behind them, take the place of `head_dim` floats.
  void (*round_query)(const float* query, float* rounded, int head_dim);

  // Attends at most kMaxQueries queries to the first `counts[i]` positions of a chunk. Queries
  // lie `head_dim` floats apart, already scaled; for `attend_codes` they are rounded. Where
  // `counts[i]` is 0, the sums stay as they are.
  void (*attend_codes)(const ContextChunk& chunk, const float* queries, const int* counts,
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
