#include "block_drafter.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

namespace outrider {

namespace {

void require(bool holds, const std::string& sentence) {
  if (!holds) throw std::invalid_argument(sentence);
}

void check_markov(const MarkovHead& markov, const Shape& shape, size_t num_outputs) {
  const int rank = markov.rank();
  const auto hidden = static_cast<int>(shape.hidden_size);
  require(markov.before.rows() == shape.vocab_size, "markov_w1 needs a row per token");
  require(markov.after.rows() == static_cast<int64_t>(num_outputs) && markov.after.columns() == rank,
          "markov_w2 needs a row of the rank per token of the draft vocabulary");
  if (markov.type == MarkovType::vanilla) return;
  const bool is_gated = markov.type == MarkovType::gated;
  const int rows = is_gated ? rank : 3 * rank;
  const int columns = is_gated ? hidden + rank : 2 * rank + hidden;
  require(markov.mix.rows() == rows && markov.mix.columns() == columns &&
              static_cast<int>(markov.mix_bias.size()) == rows,
          "the projection of the Markov head does not fit its rank and the hidden size");
}

}  // namespace

void BlockParts::check(const Shape& shape) const {
  require(block_size >= (is_anchor_first ? 1 : 2), "a block needs a slot that predicts");
  require(mask_token >= 0 && mask_token < shape.vocab_size,
          "the mask token is outside the vocabulary");
  require(num_candidates >= 1 && num_candidates <= kStripes,
          "the number of candidates must be 1 to " + std::to_string(kStripes));
  require(fuse.out_features() == shape.hidden_size && fuse.in_features() % shape.hidden_size == 0,
          "fc does not fit the hidden size");
  require(static_cast<int64_t>(fused_norm.size()) == shape.hidden_size,
          "hidden_norm does not fit the hidden size");
  require(head.in_features() == shape.hidden_size &&
              head.out_features() == static_cast<int64_t>(vocabulary.size()),
          "the head needs a row per token of the draft vocabulary");
  const auto falls = std::adjacent_find(vocabulary.begin(), vocabulary.end(),
                                        [](int32_t a, int32_t b) { return a >= b; });
  require(falls == vocabulary.end() && vocabulary.front() >= 0 &&
              vocabulary.back() < shape.vocab_size,
          "the draft vocabulary must be ascending tokens of the target");
  if (markov.type != MarkovType::none) check_markov(markov, shape, vocabulary.size());
  const int64_t seen = shape.hidden_size + (confidence.sees_token ? markov.rank() : 0);
  require(confidence.empty() || static_cast<int64_t>(confidence.weight.size()) == seen,
          "the confidence head does not fit what it sees");
}

BlockDrafter::BlockDrafter(std::unique_ptr<Decoder> decoder, BlockParts parts, Isa isa)
    : decoder_(std::move(decoder)),
      parts_(std::move(parts)),
      row_kernels_(row_kernels_for(isa)),
      kernels_(block_kernels_for(isa)),
      passes_(sample_kernels_for(isa)),
      gemm_(decoder_->pool(), isa),
      ones_(decoder_->shape().hidden_size, 1.0f),
      finders_(decoder_->pool().size()) {
  parts_.check(decoder_->shape());
}

void BlockDrafter::write_context(const std::vector<Span>& spans, const float* features,
                                 int64_t num_rows) {
  const int64_t size = decoder_->shape().hidden_size, width = parts_.fuse.in_features();
  const auto columns = static_cast<int>(size);
  const float eps = decoder_->shape().norm_eps;
  if (parts_.norms_features) {
    features_.resize(num_rows * width);
    for (int64_t at = 0; at < num_rows * width; at += size) {
      row_kernels_.rms_norm(features + at, ones_.data(), features_.data() + at, columns, eps);
    }
    features = features_.data();
  }
  fused_.resize(num_rows * size);
  gemm_.matmul({{&parts_.fuse, fused_.data(), size, false}}, features, width, num_rows);
  for (int64_t row = 0; row < num_rows; row++) {
    float* fused = fused_.data() + row * size;
    row_kernels_.rms_norm(fused, parts_.fused_norm.data(), fused, columns, eps);
  }
  decoder_->write_context(spans, fused_.data(), num_rows);
}

std::vector<BlockDraft> BlockDrafter::draft(const std::vector<BlockRow>& rows) {
  std::vector<BlockDraft> drafts(rows.size());
  const int64_t num_slots = run_blocks(rows);
  const int64_t outputs = parts_.head.out_features();
  logits_.resize(num_slots * outputs);
  gemm_.matmul({{&parts_.head, logits_.data(), outputs, false}}, normed_.data(),
               decoder_->shape().hidden_size, num_slots);
  candidates_.resize(num_slots);
  decoder_->pool().parallel_for(num_slots, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t slot = begin; slot < end; slot++) {
      finders_[worker].find(kernels_, passes_, logits_.data() + slot * outputs, outputs,
                            parts_.num_candidates, candidates_[slot]);
    }
  });
  std::vector<int64_t> firsts;
  int64_t first = 0;
  for (const BlockRow& row : rows) {
    firsts.push_back(first);
    first += row.num_drafts;
  }
  const auto count = static_cast<int64_t>(rows.size());
  decoder_->pool().parallel_for(count, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) take_tokens(rows[i], firsts[i], drafts[i]);
  });
  return drafts;
}

int64_t BlockDrafter::run_blocks(const std::vector<BlockRow>& rows) {
  const int64_t size = decoder_->shape().hidden_size;
  spans_.clear();
  tokens_.clear();
  int64_t num_slots = 0;
  for (const BlockRow& row : rows) {
    const auto first = static_cast<int64_t>(tokens_.size());
    spans_.push_back({first, parts_.block_size, row.kv_len, row.block_table, false});
    tokens_.push_back(row.anchor);
    tokens_.resize(first + parts_.block_size, parts_.mask_token);
    num_slots += row.num_drafts;
  }
  const auto num_rows = static_cast<int64_t>(tokens_.size());
  hidden_.resize(num_rows * size);
  Window window;
  window.spans = spans_;
  window.tokens = tokens_.data();
  window.num_rows = num_rows;
  decoder_->forward(window, hidden_.data(), nullptr);
  normed_.resize(num_slots * size);
  float* to = normed_.data();
  for (size_t i = 0; i < rows.size(); i++) {
    const int64_t first = spans_[i].first_row + (parts_.is_anchor_first ? 0 : 1);
    const int64_t numbers = rows[i].num_drafts * size;
    std::memcpy(to, hidden_.data() + first * size, sizeof(float) * numbers);
    to += numbers;
  }
  decoder_->norm(normed_.data(), num_slots, normed_.data());
  return num_slots;
}

void BlockDrafter::take_tokens(const BlockRow& row, int64_t first, BlockDraft& draft) {
  const auto size = static_cast<int>(decoder_->shape().hidden_size);
  MarkovChain chain(parts_.markov, kernels_, size);
  TokenTaker taker(*row.rule);
  int64_t token = row.anchor;
  std::vector<int32_t> ids;
  std::vector<double> probs;
  for (int slot = 0; slot < row.num_drafts; slot++) {
    Candidates& candidates = candidates_[first + slot];
    const float* hidden = normed_.data() + (first + slot) * size;
    chain.step(token, hidden);
    chain.add_bias(candidates);
    ids.clear();
    for (const int32_t index : candidates.rows) ids.push_back(parts_.vocabulary[index]);
    token = taker.take(ids, candidates.logits, probs);
    if (token < 0) return;
    draft.tokens.push_back(token);
    if (!parts_.confidence.empty()) {
      draft.confidence.push_back(
          parts_.confidence.estimate(kernels_, hidden, size, chain.before(), parts_.markov.rank()));
    }
    if (row.rule->draws()) {
      draft.ids.push_back(ids);
      draft.probs.push_back(probs);
    }
  }
}

}  // namespace outrider
