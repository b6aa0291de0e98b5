#include "sample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "noise.h"

namespace outrider {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();
constexpr int64_t kNucleusGuess = 512;
constexpr int kBinBits = 11;

// Noise of at least kFar needs a word of at least far_word(); one word in 20,000 is.
constexpr double kFar = 10.0;

uint64_t far_word() {
  static const auto word =
      static_cast<uint64_t>(std::exp(-std::exp(-kFar)) * 9007199254740992.0) - 2;
  return word;
}

// Numbers in the order of the floats they come from.
uint32_t ordered(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

float from_ordered(uint32_t order) {
  const uint32_t bits = order & 0x80000000u ? order & 0x7fffffffu : ~order;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void apply_mask(float* row, int64_t size, const std::string& mask) {
  for (int64_t begin = 0; begin < size; begin += 8) {
    const auto bits = static_cast<uint8_t>(mask[begin / 8]);
    if (bits == 0xff) continue;
    const int64_t end = std::min(begin + 8, size);
    for (int64_t i = begin; i < end; i++) {
      if (!(bits >> (i - begin) & 1)) row[i] = kOut;
    }
  }
}

}  // namespace

const SampleKernels& sample_kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512vnni) return sample_kernels_avx512();
  if (isa == Isa::avx2 || isa == Isa::avxvnni) return sample_kernels_avx2();
#endif
  (void)isa;
  return sample_kernels_portable();
}

Sampler::Sampler(ThreadPool& pool, Isa isa)
    : pool_(pool), kernels_(sample_kernels_for(isa)), scratch_(pool.size()) {}

void Sampler::sample(const float* logits, int64_t ld, int64_t vocab_size, const int64_t* rows,
                     const std::vector<const WarpRule*>& rules, const uint64_t* seeds,
                     const int64_t* positions, int64_t* tokens) {
  const auto count = static_cast<int64_t>(rules.size());
  pool_.parallel_for(count, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t i = begin; i < end; i++) {
      tokens[i] = sample_row(logits + rows[i] * ld, vocab_size, *rules[i], seeds[i], positions[i],
                             scratch_[worker]);
    }
  });
}

void Sampler::largest(const float* logits, int64_t ld, int64_t vocab_size, int64_t num_rows,
                      int64_t* tokens, float* values) {
  pool_.parallel_for(num_rows, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      if (!kernels_.largest(logits + i * ld, vocab_size, values + i, tokens + i)) {
        tokens[i] = kNotNumbers;
      }
    }
  });
}

int64_t Sampler::sample_row(const float* logits, int64_t size, const WarpRule& rule, uint64_t seed,
                            int64_t position, Scratch& scratch) const {
  float top;
  int64_t first;
  if (!kernels_.largest(logits, size, &top, &first)) return kNotNumbers;
  if (rule.is_greedy() && !rule.changes_logits()) return first;
  scratch.row.resize(size);
  float* row = scratch.row.data();
  adjust(row, logits, size, rule);
  if (!rule.is_greedy()) {
    if (rule.temperature != 1.0) {
      const auto temperature = static_cast<float>(rule.temperature);
      for (int64_t i = 0; i < size; i++) row[i] /= temperature;
    }
    truncate(row, size, rule, scratch);
  }
  kernels_.largest(row, size, &top, &first);
  if (top == kOut) return kNoneLeft;
  if (rule.is_greedy()) return first;
  return noisy_largest(row, size, match_key(seed, position), scratch);
}

void Sampler::adjust(float* row, const float* logits, int64_t size, const WarpRule& rule) const {
  if (rule.allowed) {
    std::fill(row, row + size, kOut);
    for (const int32_t token : *rule.allowed) row[token] = logits[token];
  } else {
    std::copy(logits, logits + size, row);
  }
  if (!rule.mask.empty()) apply_mask(row, size, rule.mask);
  for (const auto& [token, value] : rule.bias) row[token] += value;
  for (const int32_t token : rule.held_back) row[token] = kOut;
  if (rule.repetition_penalty != 1.0f) {
    for (const int32_t token : rule.seen) {
      const float value = row[token];
      row[token] = value > 0.0f ? value / rule.repetition_penalty : value * rule.repetition_penalty;
    }
  }
  for (const auto& [token, value] : rule.penalty) row[token] -= value;
}

void Sampler::truncate(float* row, int64_t size, const WarpRule& rule, Scratch& scratch) const {
  const auto cut = [row, size](float border) {
    for (int64_t i = 0; i < size; i++) row[i] = row[i] < border ? kOut : row[i];
  };
  if (rule.log_min_p) {
    float top;
    int64_t first;
    kernels_.largest(row, size, &top, &first);
    cut(top + *rule.log_min_p);
  }
  if (rule.top_k > 0 && rule.top_k < size) {
    largest_values(row, size, rule.top_k, scratch);
    cut(scratch.values[rule.top_k - 1]);
  }
  if (rule.top_p < 1.0) cut(nucleus_border(row, size, rule.top_p, scratch));
}

float Sampler::nucleus_border(const float* row, int64_t size, double top_p,
                              Scratch& scratch) const {
  float top;
  int64_t first;
  kernels_.largest(row, size, &top, &first);
  if (top == kOut) return kOut;
  const double log_total = top + std::log(kernels_.sum_exp(row, size, top));
  for (int64_t number = std::min(kNucleusGuess, size);; number = std::min(32 * number, size)) {
    largest_values(row, size, number, scratch);
    double mass = 0.0;
    for (int64_t i = 0; i < number; i++) {
      mass += std::exp(scratch.values[i] - log_total);
      if (mass >= top_p || (number == size && i == size - 1)) return scratch.values[i];
    }
  }
}

void Sampler::largest_values(const float* row, int64_t size, int64_t number,
                             Scratch& scratch) const {
  std::array<int32_t, 1 << kBinBits> bins{};
  for (int64_t i = 0; i < size; i++) bins[ordered(row[i]) >> (32 - kBinBits)]++;
  int64_t above = 0;
  size_t bin = bins.size() - 1;
  while ((above += bins[bin]) < number) bin--;
  scratch.indices.resize(size);
  // The lowest bin holds minus infinity and what would be NaN of the other sign.
  const uint32_t lowest = static_cast<uint32_t>(bin) << (32 - kBinBits);
  const float border = lowest <= ordered(kOut) ? kOut : from_ordered(lowest);
  const int64_t found = kernels_.at_least(row, size, border, scratch.indices.data());
  scratch.values.resize(found);
  for (int64_t i = 0; i < found; i++) scratch.values[i] = row[scratch.indices[i]];
  const auto end = scratch.values.begin() + number;
  if (number < found) {
    std::nth_element(scratch.values.begin(), end - 1, scratch.values.end(), std::greater<>());
  }
  std::sort(scratch.values.begin(), end, std::greater<>());
}

int64_t Sampler::noisy_largest(const float* row, int64_t size, uint64_t key,
                               Scratch& scratch) const {
  float top;
  int64_t best;
  kernels_.largest(row, size, &top, &best);
  // A candidate far below the best can only win with a rare noise, which shows in its word.
  const double bound = top + gumbel(noise_word(key, static_cast<uint64_t>(best))) - kFar;
  scratch.indices.resize(size);
  scratch.words.resize(size);
  const int64_t found = kernels_.contenders(row, size, key, bound, far_word(),
                                            scratch.indices.data(), scratch.words.data());
  double highest = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < found; i++) {
    const double noisy = row[scratch.indices[i]] + gumbel(scratch.words[i]);
    if (noisy > highest) {
      highest = noisy;
      best = scratch.indices[i];
    }
  }
  return best;
}

}  // namespace outrider
