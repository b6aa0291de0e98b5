#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace outrider {

namespace {

// Numbers that one thread norms, turns or gates about as fast as it hands them to another thread.
constexpr int64_t kNumbersPerShare = 4096;

int64_t rows_per_share(int64_t row_size) {
  return std::max<int64_t>(1, kNumbersPerShare / row_size);
}

}  // namespace

const RowKernels& row_kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512vnni) return row_kernels_avx512();
  if (isa == Isa::avx2 || isa == Isa::avxvnni) return row_kernels_avx2();
#endif
  (void)isa;
  return row_kernels_portable();
}

Decoder::Decoder(std::shared_ptr<const Weights> weights, std::shared_ptr<ThreadPool> pool, Isa isa,
                 Rotary rotary, std::unique_ptr<KvCache> cache)
    : weights_(std::move(weights)),
      shape_(weights_->shape()),
      pool_(std::move(pool)),
      kernels_(row_kernels_for(isa)),
      gemm_(*pool_, isa),
      rotary_(std::move(rotary)),
      cache_(std::move(cache)),
      attention_(*pool_, kernels_, shape_.num_heads) {
  weights_->check_complete();
}

void Decoder::forward(const Window& window, float* hidden, float* features) {
  const int64_t rows = window.num_rows, wide = shape_.intermediate_size;
  reserve(rows);
  for (const Span& span : window.spans) rotary_.reach(span.kv_len + span.num_rows);
  attention_.plan(window.spans, *cache_);
  embed(window, hidden);
  tap(window, -1, hidden, features);
  for (int layer = 0; layer < shape_.num_layers; layer++) {
    const LayerWeights& own = weights_->layer(layer);
    norm_rows(hidden, own.attention_norm, rows, normed_.data());
    project(layer, normed_.data(), rows, true);
    turn_and_cache(layer, window.spans, true);
    attention_.run(*cache_, layer, qkv_.data(), shape_.qkv_size(), attended_.data(),
                   shape_.query_size());
    gemm_.matmul({{&own.output, hidden, shape_.hidden_size, true}}, attended_.data(),
                 shape_.query_size(), rows);
    norm_rows(hidden, own.mlp_norm, rows, normed_.data());
    float* gate = gate_up_.data();
    gemm_.matmul({{&own.gate, gate, 2 * wide, false}, {&own.up, gate + wide, 2 * wide, false}},
                 normed_.data(), shape_.hidden_size, rows);
    gate_rows(rows);
    gemm_.matmul({{&own.down, hidden, shape_.hidden_size, true}}, gate, 2 * wide, rows);
    tap(window, layer, hidden, features);
  }
}

void Decoder::write_context(const std::vector<Span>& spans, const float* rows, int64_t num_rows) {
  reserve(num_rows);
  for (const Span& span : spans) rotary_.reach(span.kv_len + span.num_rows);
  for (int layer = 0; layer < shape_.num_layers; layer++) {
    project(layer, rows, num_rows, false);
    turn_and_cache(layer, spans, false);
  }
}

void Decoder::norm(const float* rows, int64_t num_rows, float* output) {
  norm_rows(rows, weights_->norm(), num_rows, output);
}

void Decoder::logits(const float* normed, int64_t num_rows, float* output,
                     const PackedMatrix* part) {
  const PackedMatrix& head = part ? *part : weights_->head();
  gemm_.matmul({{&head, output, head.out_features(), false}}, normed, shape_.hidden_size, num_rows);
}

void Decoder::embed(const Window& window, float* hidden) {
  const int64_t size = shape_.hidden_size;
  if (window.inputs) {
    std::memcpy(hidden, window.inputs, sizeof(float) * size * window.num_rows);
    return;
  }
  pool_->parallel_for(window.num_rows, rows_per_share(size), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; row++) {
      dequantize_row(weights_->embedding(), window.tokens[row], hidden + row * size);
    }
  });
}

void Decoder::norm_rows(const float* rows, const std::vector<float>& weight, int64_t num_rows,
                        float* output) {
  const int64_t size = shape_.hidden_size;
  pool_->parallel_for(num_rows, rows_per_share(size), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; row++) {
      kernels_.rms_norm(rows + row * size, weight.data(), output + row * size,
                        static_cast<int>(size), shape_.norm_eps);
    }
  });
}

void Decoder::project(int layer, const float* input, int64_t num_rows, bool with_queries) {
  const LayerWeights& own = weights_->layer(layer);
  const int64_t queries = shape_.query_size(), keys = shape_.key_size(), ld = shape_.qkv_size();
  const bool biased = shape_.has_qkv_bias;
  if (biased) {
    for (int64_t row = 0; row < num_rows; row++) {
      float* to = qkv_.data() + row * ld;
      std::copy(own.query_bias.begin(), own.query_bias.end(), to);
      std::copy(own.key_bias.begin(), own.key_bias.end(), to + queries);
      std::copy(own.value_bias.begin(), own.value_bias.end(), to + queries + keys);
    }
  }
  const Product products[] = {
      {&own.query, qkv_.data(), ld, biased},
      {&own.key, qkv_.data() + queries, ld, biased},
      {&own.value, qkv_.data() + queries + keys, ld, biased},
  };
  const int skipped = with_queries ? 0 : 1;
  gemm_.matmul(products + skipped, 3 - skipped, input, shape_.hidden_size, num_rows);
}

void Decoder::turn_and_cache(int layer, const std::vector<Span>& spans, bool with_queries) {
  const int64_t grain = rows_per_share(shape_.qkv_size());
  for (const Span& span : spans) {
    pool_->parallel_for(span.num_rows, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++)
        turn_row(layer, span, static_cast<int>(i), with_queries);
    });
  }
}

void Decoder::turn_row(int layer, const Span& span, int index, bool with_queries) {
  const LayerWeights& own = weights_->layer(layer);
  const int size = shape_.head_dim;
  float* queries = qkv_.data() + (span.first_row + index) * shape_.qkv_size();
  float* keys = queries + shape_.query_size();
  const float* values = keys + shape_.key_size();
  const int64_t position = span.kv_len + index;
  const float* cosines = rotary_.cosines(position);
  const float* sines = rotary_.sines(position);
  if (with_queries) {
    const float scale = 1.0f / std::sqrt(static_cast<float>(size));
    for (int head = 0; head < shape_.num_heads; head++) {
      float* query = queries + head * size;
      if (shape_.has_head_norms) {
        kernels_.rms_norm(query, own.query_norm.data(), query, size, shape_.norm_eps);
      }
      kernels_.rotate(query, cosines, sines, size);
    }
    kernels_.scale(queries, scale, static_cast<int>(shape_.query_size()));
  }
  const int64_t slot = span.slot(position, cache_->block_size());
  for (int head = 0; head < shape_.num_kv_heads; head++) {
    float* key = keys + head * size;
    if (shape_.has_head_norms) {
      kernels_.rms_norm(key, own.key_norm.data(), key, size, shape_.norm_eps);
    }
    kernels_.rotate(key, cosines, sines, size);
    cache_->write(kernels_, layer, head, slot, key, values + head * size);
  }
}

void Decoder::gate_rows(int64_t num_rows) {
  const int64_t wide = shape_.intermediate_size;
  pool_->parallel_for(num_rows, rows_per_share(wide), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; row++) {
      float* gate = gate_up_.data() + row * 2 * wide;
      kernels_.gated(gate, gate + wide, gate, static_cast<int>(wide));
    }
  });
}

void Decoder::reserve(int64_t num_rows) {
  const auto grow = [num_rows](std::vector<float>& buffer, int64_t size) {
    if (static_cast<int64_t>(buffer.size()) < num_rows * size) buffer.resize(num_rows * size);
  };
  grow(normed_, shape_.hidden_size);
  grow(qkv_, shape_.qkv_size());
  grow(attended_, shape_.query_size());
  grow(gate_up_, 2 * shape_.intermediate_size);
}

void Decoder::tap(const Window& window, int layer, const float* hidden, float* features) {
  const int64_t size = shape_.hidden_size, ld = size * static_cast<int64_t>(window.taps.size());
  for (size_t i = 0; i < window.taps.size(); i++) {
    if (window.taps[i] != layer) continue;
    for (int64_t row = 0; row < window.num_rows; row++) {
      std::memcpy(features + row * ld + static_cast<int64_t>(i) * size, hidden + row * size,
                  sizeof(float) * size);
    }
  }
}

}  // namespace outrider
