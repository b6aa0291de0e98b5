#include "draft_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "noise.h"

namespace outrider {

namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

// Calls `body(logit)` if the token is among the candidates.
template <class Body>
void with(const std::vector<int32_t>& ids, std::vector<float>& logits, int32_t token, Body body) {
  const auto place = std::lower_bound(ids.begin(), ids.end(), token);
  if (place != ids.end() && *place == token) body(logits[place - ids.begin()]);
}

// The probability of every candidate, in float64; the largest logit is finite.
void soften(const std::vector<float>& logits, float top, std::vector<double>& probs) {
  probs.resize(logits.size());
  double total = 0.0;
  for (size_t i = 0; i < logits.size(); i++) {
    probs[i] = std::exp(static_cast<double>(logits[i]) - top);
    total += probs[i];
  }
  for (double& prob : probs) prob /= total;
}

// The first candidate whose cumulated probability exceeds the number; see sampling/draw.py.
size_t drawn(const std::vector<double>& probs, double number) {
  double total = 0.0;
  for (const double prob : probs) total += prob;
  double cumulated = 0.0;
  size_t last = 0;
  for (size_t i = 0; i < probs.size(); i++) {
    if (probs[i] == 0.0) continue;
    cumulated += probs[i];
    last = i;
    if (cumulated > number * total) return i;
  }
  return last;
}

size_t noisy_largest(const std::vector<int32_t>& ids, const std::vector<float>& logits,
                     uint64_t key) {
  size_t best = 0;
  double highest = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < ids.size(); i++) {
    if (logits[i] == kOut) continue;
    const double noisy = logits[i] + gumbel(noise_word(key, static_cast<uint64_t>(ids[i])));
    if (noisy > highest) {
      highest = noisy;
      best = i;
    }
  }
  return best;
}

}  // namespace

int64_t TokenTaker::take(const std::vector<int32_t>& ids, std::vector<float>& logits,
                         std::vector<double>& probs) {
  const int64_t slot = slot_++;
  if (slot == rule_.num_held) warp_.held_back.clear();
  adjust(ids, logits);
  if (!warp_.is_greedy()) {
    if (warp_.temperature != 1.0) {
      const auto temperature = static_cast<float>(warp_.temperature);
      for (float& logit : logits) logit /= temperature;
    }
    truncate(logits);
  }
  const auto top = std::max_element(logits.begin(), logits.end());
  if (top == logits.end() || !std::isfinite(*top)) return -1;
  size_t chosen = top - logits.begin();
  if (rule_.draws()) {
    soften(logits, *top, probs);
    chosen = drawn(probs, rule_.uniforms[slot]);
  } else if (!warp_.is_greedy()) {
    chosen = noisy_largest(ids, logits, match_key(rule_.seed, rule_.position + slot));
  }
  remember(ids[chosen]);
  return ids[chosen];
}

void TokenTaker::adjust(const std::vector<int32_t>& ids, std::vector<float>& logits) const {
  if (warp_.allowed) {
    std::vector<float> kept(logits.size(), kOut);
    for (const int32_t token : *warp_.allowed) {
      const auto place = std::lower_bound(ids.begin(), ids.end(), token);
      if (place == ids.end() || *place != token) continue;
      kept[place - ids.begin()] = logits[place - ids.begin()];
    }
    logits.swap(kept);
  }
  for (const auto& [token, bias] : warp_.bias) {
    with(ids, logits, token, [bias = bias](float& logit) { logit += bias; });
  }
  for (const int32_t token : warp_.held_back) {
    with(ids, logits, token, [](float& logit) { logit = kOut; });
  }
  if (warp_.repetition_penalty != 1.0f) {
    const float scale = warp_.repetition_penalty;
    for (const int32_t token : warp_.seen) {
      with(ids, logits, token,
           [scale](float& logit) { logit = logit > 0.0f ? logit / scale : logit * scale; });
    }
  }
  for (const auto& [token, penalty] : warp_.penalty) {
    with(ids, logits, token, [penalty = penalty](float& logit) { logit -= penalty; });
  }
}

void TokenTaker::truncate(std::vector<float>& logits) {
  const auto cut = [&logits](float border) {
    for (float& logit : logits) logit = logit < border ? kOut : logit;
  };
  if (warp_.log_min_p && !logits.empty()) {
    cut(*std::max_element(logits.begin(), logits.end()) + *warp_.log_min_p);
  }
  const auto number = static_cast<int64_t>(logits.size());
  if (warp_.top_k > 0 && warp_.top_k < number) {
    sorted_ = logits;
    const auto border = sorted_.begin() + (warp_.top_k - 1);
    std::nth_element(sorted_.begin(), border, sorted_.end(), std::greater<>());
    cut(*border);
  }
  if (warp_.top_p < 1.0 && number > 0) cut(nucleus_border(logits));
}

float TokenTaker::nucleus_border(const std::vector<float>& logits) {
  sorted_ = logits;
  std::sort(sorted_.begin(), sorted_.end(), std::greater<>());
  if (!std::isfinite(sorted_.front())) return kOut;
  double total = 0.0;
  for (const float logit : sorted_) total += std::exp(double{logit} - sorted_.front());
  double mass = 0.0;
  for (const float logit : sorted_) {
    mass += std::exp(double{logit} - sorted_.front()) / total;
    if (mass >= warp_.top_p) return logit;
  }
  return sorted_.back();
}

// Counts a drafted token as part of the output that the later slots see.
void TokenTaker::remember(int64_t token) {
  const auto id = static_cast<int32_t>(token);
  if (warp_.repetition_penalty != 1.0f &&
      std::find(warp_.seen.begin(), warp_.seen.end(), id) == warp_.seen.end()) {
    warp_.seen.push_back(id);
  }
  if (rule_.presence_penalty == 0.0f && rule_.frequency_penalty == 0.0f) return;
  for (auto& [known, penalty] : warp_.penalty) {
    if (known != id) continue;
    penalty += rule_.frequency_penalty;
    return;
  }
  warp_.penalty.emplace_back(id, rule_.presence_penalty + rule_.frequency_penalty);
}

}  // namespace outrider
