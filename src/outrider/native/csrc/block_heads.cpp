#include "block_heads.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include "quant.h"

namespace outrider {

namespace {

double sigmoid(double value) {
  return 1.0 / (1.0 + std::exp(-value));
}

}  // namespace

RowTable::RowTable(const float* values, size_t count, int64_t rows, int columns)
    : rows_(rows), columns_(columns), halves_(count) {
  if (count != static_cast<size_t>(rows) * static_cast<size_t>(columns)) {
    throw std::invalid_argument("a table of " + std::to_string(rows) + " x " +
                                std::to_string(columns) + " rows has " + std::to_string(count) +
                                " numbers");
  }
  std::transform(values, values + count, halves_.begin(), float_to_half);
}

void CandidateFinder::find(const BlockKernels& kernels, const SampleKernels& passes,
                           const float* row, int64_t size, int number, Candidates& found) {
  // Where there are as many stripes with a peak of at least some height, there are as many numbers.
  kernels.stripe_peaks(row, size, peaks_);
  std::nth_element(peaks_, peaks_ + number - 1, peaks_ + kStripes, std::greater<>());
  indices_.resize(size);
  const int64_t count = passes.at_least(row, size, peaks_[number - 1], indices_.data());
  found.rows.assign(indices_.begin(), indices_.begin() + count);
  // Minus infinity is no candidate, even where it is the border.
  const auto out = [row](int32_t i) { return row[i] == -std::numeric_limits<float>::infinity(); };
  found.rows.erase(std::remove_if(found.rows.begin(), found.rows.end(), out), found.rows.end());
  if (static_cast<int>(found.rows.size()) > number) {
    const auto before = [row](int32_t a, int32_t b) {
      return row[a] > row[b] || (row[a] == row[b] && a < b);
    };
    std::nth_element(found.rows.begin(), found.rows.begin() + number, found.rows.end(), before);
    found.rows.resize(number);
    std::sort(found.rows.begin(), found.rows.end());
  }
  found.logits.resize(found.rows.size());
  for (size_t i = 0; i < found.rows.size(); i++) found.logits[i] = row[found.rows[i]];
}

MarkovType markov_type_from_name(const std::string& name) {
  if (name == "none") return MarkovType::none;
  if (name == "vanilla") return MarkovType::vanilla;
  if (name == "gated") return MarkovType::gated;
  if (name == "rnn") return MarkovType::rnn;
  throw std::invalid_argument("unknown Markov head '" + name +
                              "'; known: none, vanilla, gated, rnn");
}

MarkovChain::MarkovChain(const MarkovHead& head, const BlockKernels& kernels, int hidden_size)
    : head_(head),
      kernels_(kernels),
      hidden_size_(hidden_size),
      before_(head.rank()),
      state_(head.rank(), 0.0f),
      latent_(head.rank()),
      input_(2 * head.rank() + hidden_size) {}

void MarkovChain::step(int64_t token, const float* hidden) {
  if (head_.type == MarkovType::none) return;
  const int rank = head_.rank();
  kernels_.widen(head_.before.row(token), before_.data(), rank);
  if (head_.type == MarkovType::vanilla) {
    latent_ = before_;
  } else if (head_.type == MarkovType::gated) {
    std::copy(hidden, hidden + hidden_size_, input_.begin());
    std::copy(before_.begin(), before_.end(), input_.begin() + hidden_size_);
    for (int i = 0; i < rank; i++) {
      latent_[i] = static_cast<float>(sigmoid(mixed(i))) * before_[i];
    }
  } else {
    std::copy(state_.begin(), state_.end(), input_.begin());
    std::copy(before_.begin(), before_.end(), input_.begin() + rank);
    std::copy(hidden, hidden + hidden_size_, input_.begin() + 2 * rank);
    for (int i = 0; i < rank; i++) {
      const double keep = sigmoid(mixed(i));
      state_[i] = static_cast<float>(keep * state_[i] + (1.0 - keep) * std::tanh(double{mixed(rank + i)}));
      latent_[i] = static_cast<float>(std::tanh(double{mixed(2 * rank + i)}));
    }
  }
}

// One output of `mix` for the concatenated input.
float MarkovChain::mixed(int row) const {
  return kernels_.dot_half(input_.data(), head_.mix.row(row), head_.mix.columns()) +
         head_.mix_bias[row];
}

void MarkovChain::add_bias(Candidates& candidates) const {
  if (head_.type == MarkovType::none) return;
  for (size_t i = 0; i < candidates.rows.size(); i++) {
    candidates.logits[i] +=
        kernels_.dot_half(latent_.data(), head_.after.row(candidates.rows[i]), head_.rank());
  }
}

float ConfidenceHead::estimate(const BlockKernels& kernels, const float* hidden, int hidden_size,
                               const float* before, int rank) const {
  float logit = kernels.dot(hidden, weight.data(), hidden_size) + bias;
  if (sees_token) logit += kernels.dot(before, weight.data() + hidden_size, rank);
  return static_cast<float>(sigmoid(logit));
}

const BlockKernels& block_kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512vnni) return block_kernels_avx512();
  if (isa == Isa::avx2 || isa == Isa::avxvnni) return block_kernels_avx2();
#endif
  (void)isa;
  return block_kernels_portable();
}

}  // namespace outrider
