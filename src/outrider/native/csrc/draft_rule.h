// How a drafter takes a token from the logits of a few candidates.
//
// The steps of sampling/warp.py and sampling/draw.py over the candidates alone, all other tokens
// being out. What the target says is decided elsewhere: a draft only has to agree with it often.

#pragma once

#include <cstdint>
#include <vector>

#include "sample.h"

namespace outrider {

struct DraftRule {
  WarpRule warp;  // As it holds for the text before the block.
  // What a token drafted in this block adds to the penalties of the later slots.
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;
  int64_t num_held = 0;  // Slots at which `warp.held_back` still holds.
  // Either the largest with the noise of (seed, position + slot), or a draw by inverse transform
  // with the slot's number from `uniforms`.
  uint64_t seed = 0;
  int64_t position = 0;
  std::vector<double> uniforms;

  bool draws() const { return !uniforms.empty(); }
};

// Takes the tokens of one block, slot by slot.
class TokenTaker {
 public:
  explicit TokenTaker(const DraftRule& rule) : rule_(rule), warp_(rule.warp) {}

  // A token of `ids` (ascending), or -1 where none is left. `logits` are used up. If the rule
  // draws, `probs` gets what was drawn from, one per candidate.
  int64_t take(const std::vector<int32_t>& ids, std::vector<float>& logits,
               std::vector<double>& probs);

 private:
  void adjust(const std::vector<int32_t>& ids, std::vector<float>& logits) const;
  void truncate(std::vector<float>& logits);
  float nucleus_border(const std::vector<float>& logits);
  void remember(int64_t token);

  const DraftRule& rule_;
  WarpRule warp_;
  int64_t slot_ = 0;
  std::vector<float> sorted_;
};

}  // namespace outrider
