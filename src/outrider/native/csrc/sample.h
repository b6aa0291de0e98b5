// The target's token of a position: warped logits plus the shared noise of the position.
//
// The same steps in the same precision as sampling/warp.py and sampling/draw.py on float32 logits:
// warps in float32, the nucleus and the noise in float64, ties to the lowest id.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cpu.h"
#include "sample_kernels.h"
#include "threads.h"

namespace outrider {

// How one row is warped. Lists name tokens; values are what warp.py holds in float32.
struct WarpRule {
  double temperature = 1.0;  // 0: the largest.
  int64_t top_k = 0;
  double top_p = 1.0;
  std::optional<float> log_min_p;
  float repetition_penalty = 1.0f;
  std::optional<std::vector<int32_t>> allowed;
  std::string mask;  // A bit per token, the lowest of a byte first; empty for none.
  std::vector<std::pair<int32_t, float>> bias;
  std::vector<int32_t> held_back;
  std::vector<int32_t> seen;                       // What the repetition penalty hits.
  std::vector<std::pair<int32_t, float>> penalty;  // Subtracted.

  bool is_greedy() const { return temperature == 0.0; }
  bool changes_logits() const {
    return allowed || !mask.empty() || !bias.empty() || !held_back.empty() || repetition_penalty != 1.0f ||
           !penalty.empty();
  }
};

// A token id, or why there is none.
constexpr int64_t kNotNumbers = -1;  // A logit is NaN or the largest is infinite.
constexpr int64_t kNoneLeft = -2;    // Masks leave no token.

class Sampler {
 public:
  Sampler(ThreadPool& pool, Isa isa);

  // tokens[i] of logits[rows[i] * ld ...]: rules[i], noise of (seeds[i], positions[i]).
  void sample(const float* logits, int64_t ld, int64_t vocab_size, const int64_t* rows,
              const std::vector<const WarpRule*>& rules, const uint64_t* seeds,
              const int64_t* positions, int64_t* tokens);

  // The index of the largest logit of each row, or kNotNumbers; its value.
  void largest(const float* logits, int64_t ld, int64_t vocab_size, int64_t num_rows,
               int64_t* tokens, float* values);

 private:
  struct Scratch {
    std::vector<float> row, values;
    std::vector<int32_t> indices;
    std::vector<uint64_t> words;
  };

  int64_t sample_row(const float* logits, int64_t size, const WarpRule& rule, uint64_t seed,
                     int64_t position, Scratch& scratch) const;
  void adjust(float* row, const float* logits, int64_t size, const WarpRule& rule) const;
  void truncate(float* row, int64_t size, const WarpRule& rule, Scratch& scratch) const;
  float nucleus_border(const float* row, int64_t size, double top_p, Scratch& scratch) const;
  // The `number` largest values of a row, falling, and the ties of the last.
  void largest_values(const float* row, int64_t size, int64_t number, Scratch& scratch) const;
  int64_t noisy_largest(const float* row, int64_t size, uint64_t key, Scratch& scratch) const;

  ThreadPool& pool_;
  const SampleKernels& kernels_;
  std::vector<Scratch> scratch_;
};

const SampleKernels& sample_kernels_for(Isa isa);

}  // namespace outrider
