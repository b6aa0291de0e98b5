// A block drafter (DFlash, DSpark): the target's features in, draft tokens and confidences out.
//
//   features -> [norm] -> fc -> norm -> keys and values of every layer, cached per position
//   anchor and mask tokens -> layers over the cached context and the whole block -> norm
//     -> head over the draft vocabulary -> candidates -> Markov chain -> tokens, confidences
//
// The keys and values of the context depend on a position's features alone. What is drafted for a
// request depends on its context and rule alone: not on its batch mates, on how the features came,
// on blocks or on threads.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "block_heads.h"
#include "decoder.h"
#include "draft_rule.h"

namespace outrider {

// What turns the layers of a decoder into a block drafter.
struct BlockParts {
  int block_size = 0;
  bool is_anchor_first = true;  // The slot of the anchor predicts the first token.
  int64_t mask_token = 0;
  int num_candidates = 0;
  bool norms_features = false;  // The features of each tapped layer, before they are fused.
  PackedMatrix fuse;            // [hidden][layers * hidden]
  std::vector<float> fused_norm;
  PackedMatrix head;                // Rows of the target's head.
  std::vector<int32_t> vocabulary;  // The token of each of them, ascending.
  MarkovHead markov;
  ConfidenceHead confidence;

  int slots() const { return block_size - (is_anchor_first ? 0 : 1); }
  // Throws std::invalid_argument where the parts do not fit each other or the decoder.
  void check(const Shape& shape) const;
};

// A request to draft for: its anchor stands at position `kv_len`, everything before has context.
struct BlockRow {
  int64_t anchor;
  int64_t kv_len;
  const int32_t* block_table;  // Reaches block_size positions beyond kv_len.
  int num_drafts;              // 1 to slots().
  const DraftRule* rule;
};

struct BlockDraft {
  std::vector<int64_t> tokens;     // May end early where masks leave none.
  std::vector<float> confidence;   // One per token, if there is such a head.
  std::vector<std::vector<int32_t>> ids;  // What was drawn from, if the rule draws.
  std::vector<std::vector<double>> probs;
};

class BlockDrafter {
 public:
  BlockDrafter(std::unique_ptr<Decoder> decoder, BlockParts parts, Isa isa);

  // Caches the context of the positions of the spans; a row of features per position.
  void write_context(const std::vector<Span>& spans, const float* features, int64_t num_rows);

  std::vector<BlockDraft> draft(const std::vector<BlockRow>& rows);

  const BlockParts& parts() const { return parts_; }
  const Decoder& decoder() const { return *decoder_; }

 private:
  // The rows of the slots that predict, after the final norm, one request after another.
  int64_t run_blocks(const std::vector<BlockRow>& rows);
  void take_tokens(const BlockRow& row, int64_t first, BlockDraft& draft);

  std::unique_ptr<Decoder> decoder_;
  const BlockParts parts_;
  const RowKernels& row_kernels_;
  const BlockKernels& kernels_;
  const SampleKernels& passes_;
  Gemm gemm_;
  std::vector<float> features_, fused_, ones_, hidden_, normed_, logits_;
  std::vector<int64_t> tokens_;
  std::vector<Span> spans_;
  std::vector<CandidateFinder> finders_;
  std::vector<Candidates> candidates_;
};

}  // namespace outrider
