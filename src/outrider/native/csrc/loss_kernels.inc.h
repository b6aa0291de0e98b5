// One instruction set's table; included with OUTRIDER_LOSS_TABLE set to its function's name.

#include <cmath>

#include "loss_kernels.h"
#include "vec.h"

namespace outrider {

namespace {

typedef uint16_t ShortPart __attribute__((vector_size(kPartLanes * 2)));

OUTRIDER_INLINE Vec load_bfloat(const uint16_t* from) {
  Vec result;
  OUTRIDER_EACH_PART {
    ShortPart bits;
    std::memcpy(&bits, from + i * kPartLanes, sizeof bits);
    result.part[i] = (Part)(__builtin_convertvector(bits, IntPart) << 16);
  }
  return result;
}

// Rounds to nearest even; the values here are finite.
OUTRIDER_INLINE void store_bfloat(uint16_t* to, Vec value) {
  OUTRIDER_EACH_PART {
    const IntPart bits = (IntPart)value.part[i];
    const IntPart rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const ShortPart stored = __builtin_convertvector(rounded, ShortPart);
    std::memcpy(to + i * kPartLanes, &stored, sizeof stored);
  }
}

OUTRIDER_INLINE float bfloat_value(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

OUTRIDER_INLINE float largest(const uint16_t* row, int64_t size) {
  Vec peaks = splat(-INFINITY);
  for (int64_t i = 0; i < size; i += kLanes) peaks = max(peaks, load_bfloat(row + i));
  return max_lanes(peaks);
}

// Sizes are multiples of 16. With p = softmax(z), t the teacher, s = sign(p - t) and T = sum t:
// d CE = p - onehot, d soft CE = T p - t, d L1 = p (s - sum p s).
LossTerms loss_of_row(const LossRow& row, float* scratch) {
  const float peak = largest(row.logits, row.size);
  const float label_logit = row.label < 0 ? 0.0f : bfloat_value(row.logits[row.label]) - peak;
  Vec sums = splat(0.0f), products = splat(0.0f), masses = splat(0.0f);
  for (int64_t i = 0; i < row.size; i += kLanes) {
    const Vec shifted = load_bfloat(row.logits + i) - peak;
    const Vec teacher = load_bfloat(row.teacher + i);
    const Vec power = exponential(shifted);
    store(scratch + i, power);
    sums += power;
    products += teacher * shifted;
    masses += teacher;
  }
  const float sum = sum_lanes(sums), mass = sum_lanes(masses), scale = 1.0f / sum;
  const float log_sum = std::log(sum);
  Vec distances = splat(0.0f), signs = splat(0.0f);
  for (int64_t i = 0; i < row.size; i += kLanes) {
    const Vec drafted = load(scratch + i) * scale;
    const Vec excess = drafted - load_bfloat(row.teacher + i);
    const Vec below = splat(0.0f) - excess;
    distances += max(excess, below);
    signs += select(excess < splat(0.0f), splat(0.0f) - drafted, drafted);
  }
  const float distance = sum_lanes(distances), lean = sum_lanes(signs);
  const float ce_weight = row.label < 0 ? 0.0f : row.ce_weight;
  const float shared = ce_weight + row.kl_weight * mass - row.l1_weight * lean;
  const Vec above = splat(shared + row.l1_weight), under = splat(shared - row.l1_weight);
  for (int64_t i = 0; i < row.size; i += kLanes) {
    const Vec drafted = load(scratch + i) * scale;
    const Vec teacher = load_bfloat(row.teacher + i);
    const Vec factor = select(drafted < teacher, under, above);
    store_bfloat(row.logits + i, drafted * factor - teacher * row.kl_weight);
  }
  if (row.label >= 0) {
    const float drafted = scratch[row.label] * scale, teacher = bfloat_value(row.teacher[row.label]);
    const float factor = drafted < teacher ? shared - row.l1_weight : shared + row.l1_weight;
    const Vec gradient = splat(drafted * factor - teacher * row.kl_weight - ce_weight);
    uint16_t lanes[kLanes];
    store_bfloat(lanes, gradient);
    row.logits[row.label] = lanes[0];
  }
  LossTerms terms;
  terms.ce = row.label < 0 ? 0.0f : log_sum - label_logit;
  terms.l1 = distance;
  // |p - t| summed is sum p + sum t - 2 sum min.
  terms.overlap = 0.5f * (1.0f + mass - distance);
  terms.soft_ce = mass * log_sum - sum_lanes(products);
  return terms;
}

void softmax_of_row(uint16_t* row, int64_t size, float log_rest, float* scratch) {
  const float peak = largest(row, size);
  Vec sums = splat(0.0f);
  for (int64_t i = 0; i < size; i += kLanes) {
    const Vec power = exponential(load_bfloat(row + i) - peak);
    store(scratch + i, power);
    sums += power;
  }
  const float scale = 1.0f / (sum_lanes(sums) + std::exp(log_rest - peak));
  for (int64_t i = 0; i < size; i += kLanes) store_bfloat(row + i, load(scratch + i) * scale);
}

float log_sum_exp_of_row(const uint16_t* row, int64_t size) {
  const float peak = largest(row, size);
  Vec sums = splat(0.0f);
  for (int64_t i = 0; i < size; i += kLanes) sums += exponential(load_bfloat(row + i) - peak);
  return peak + std::log(sum_lanes(sums));
}

constexpr LossKernels kTable = {loss_of_row, softmax_of_row, log_sum_exp_of_row};

}  // namespace

const LossKernels& OUTRIDER_LOSS_TABLE() {
  return kTable;
}

}  // namespace outrider
