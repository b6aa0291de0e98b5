// The functions of RowKernels. Included by one source file per instruction set, which defines
// OUTRIDER_TABLE and OUTRIDER_TABLE_NAME. Nothing with code in standard headers may be used here:
// the linker would keep one copy, of any instruction set, for all.

#include "attend_codes.inc.h"
#include "attend_float.inc.h"
#include "row_kernels.h"
#include "vec.h"

namespace {

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
    OUTRIDER_TABLE_NAME, rms_norm,    add,         scale,        gated,        rotate,
    store_codes,         store_float, round_query, attend_codes, attend_float, merge,
};

}  // namespace

const outrider::RowKernels& outrider::OUTRIDER_TABLE() {
  return kTable;
}
