// The heads of a block drafter: the Markov head that chains the slots of a block, the confidence
// head, and the candidates that both work on.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "block_kernels.h"
#include "cpu.h"
#include "sample_kernels.h"

namespace outrider {

// Rows of numbers in half precision, each beside the next: for lookups of single rows.
class RowTable {
 public:
  RowTable() = default;
  // Throws std::invalid_argument unless there are rows * columns numbers.
  RowTable(const float* values, size_t count, int64_t rows, int columns);

  int64_t rows() const { return rows_; }
  int columns() const { return columns_; }
  bool empty() const { return halves_.empty(); }
  const uint16_t* row(int64_t index) const { return halves_.data() + index * columns_; }
  size_t bytes() const { return halves_.size() * sizeof(uint16_t); }

 private:
  int64_t rows_ = 0;
  int columns_ = 0;
  std::vector<uint16_t> halves_;
};

// What of a slot's logits is looked at: rows of the draft head, ascending, and their logits.
struct Candidates {
  std::vector<int32_t> rows;
  std::vector<float> logits;
};

// Finds the largest logits of a row; scratch memory of one thread.
class CandidateFinder {
 public:
  // The `number` largest of a row, of equal ones those at the lowest places, in ascending order of
  // place. Fewer if the row is shorter or holds no numbers. number <= kStripes.
  void find(const BlockKernels& kernels, const SampleKernels& passes, const float* row,
            int64_t size, int number, Candidates& found);

 private:
  float peaks_[kStripes];
  std::vector<int32_t> indices_;
};

enum class MarkovType { none, vanilla, gated, rnn };

// Throws std::invalid_argument for an unknown name.
MarkovType markov_type_from_name(const std::string& name);

// The sequential head of DSpark: a low-rank bias of the next token's logits by the token before,
// w2[j] · latent, where latent is w1[token] as it is, gated by the hidden row, or the output of a
// recurrent cell.
struct MarkovHead {
  MarkovType type = MarkovType::none;
  RowTable before, after;  // w1 by target token; w2 by row of the draft head.
  RowTable mix;            // gate_proj [rank][hidden + rank], or joint_proj [3 rank][2 rank + hidden].
  std::vector<float> mix_bias;

  int rank() const { return before.columns(); }
};

// A chain of slots of one block.
class MarkovChain {
 public:
  MarkovChain(const MarkovHead& head, const BlockKernels& kernels, int hidden_size);

  // Takes the token before the next slot and the slot's hidden row.
  void step(int64_t token, const float* hidden);
  // w1 of the token that `step` took.
  const float* before() const { return before_.data(); }
  // Adds the slot's bias to the logits of the candidates.
  void add_bias(Candidates& candidates) const;

 private:
  float mixed(int row) const;

  const MarkovHead& head_;
  const BlockKernels& kernels_;
  int hidden_size_;
  std::vector<float> before_, state_, latent_, input_;
};

// Chance that a slot's token is accepted, given that those before it were.
struct ConfidenceHead {
  std::vector<float> weight;  // hidden size, and the rank if it sees the token before.
  float bias = 0.0f;
  bool sees_token = false;

  bool empty() const { return weight.empty(); }
  float estimate(const BlockKernels& kernels, const float* hidden, int hidden_size,
                 const float* before, int rank) const;
};

const BlockKernels& block_kernels_for(Isa isa);

}  // namespace outrider
