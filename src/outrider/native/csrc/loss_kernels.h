// The loss of a row of draft logits against the target's distribution, and its gradient.

#pragma once

#include <cstdint>

namespace outrider {

// What a row of the loss is made of. Logits are bfloat16, as are the target's probabilities.
struct LossRow {
  uint16_t* logits;         // Replaced by the gradient.
  const uint16_t* teacher;  // Probabilities; their sum may fall short of 1.
  int64_t size;
  int64_t label;  // Index of the data token, or -1 for none.
  float ce_weight, l1_weight, kl_weight;
};

// Terms of one row, unweighted. `l1` counts only what is inside the vocabulary.
struct LossTerms {
  float ce;       // -log of the label's probability, 0 without a label.
  float l1;       // Sum of |drafted - teacher|.
  float overlap;  // Sum of the smaller of both.
  float soft_ce;  // Cross-entropy to the teacher.
};

struct LossKernels {
  // `scratch` holds `size` floats. Sizes are multiples of 16.
  LossTerms (*loss)(const LossRow& row, float* scratch);
  // Logits become probabilities, normalised over the row and what `log_rest` stands for.
  void (*softmax)(uint16_t* row, int64_t size, float log_rest, float* scratch);
  float (*log_sum_exp)(const uint16_t* row, int64_t size);
};

const LossKernels& loss_kernels_portable();
const LossKernels& loss_kernels_avx2();
const LossKernels& loss_kernels_avx512();

}  // namespace outrider
