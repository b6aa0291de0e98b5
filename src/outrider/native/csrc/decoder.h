// The decoder-only transformer of the Llama, Qwen2 and Qwen3 family, one ragged window per call.
//
// Between the linear layers everything is float32. The bits of a row depend on its tokens and their
// positions alone: not on the other rows, on how the prompt was cut, on blocks or on threads.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "attention.h"
#include "gemm.h"
#include "kv_cache.h"
#include "pack.h"
#include "rotary.h"
#include "row_kernels.h"
#include "threads.h"

namespace outrider {

struct Shape {
  int64_t vocab_size;
  int64_t hidden_size;
  int num_layers;
  int num_heads;
  int num_kv_heads;
  int head_dim;
  int64_t intermediate_size;
  float norm_eps;
  bool has_qkv_bias;
  bool has_head_norms;
  bool is_head_tied;

  int64_t query_size() const { return static_cast<int64_t>(num_heads) * head_dim; }
  int64_t key_size() const { return static_cast<int64_t>(num_kv_heads) * head_dim; }
  int64_t qkv_size() const { return query_size() + 2 * key_size(); }
};

struct LayerWeights {
  PackedMatrix query, key, value, output, gate, up, down;
  std::vector<float> attention_norm, mlp_norm, query_norm, key_norm;
  std::vector<float> query_bias, key_bias, value_bias;
};

// The weights of one model; shared by any number of decoders.
class Weights {
 public:
  explicit Weights(const Shape& shape);

  // `layer` is -1 for "embedding" and "head". Throws std::invalid_argument for an unknown name or
  // a shape that does not fit.
  void set_matrix(int layer, const std::string& name, PackedMatrix matrix);
  // Norms and biases; `layer` is -1 for the final "norm".
  void set_vector(int layer, const std::string& name, std::vector<float> values);
  // Throws std::invalid_argument naming the first weight that is missing.
  void check_complete() const;
  size_t bytes() const;

  const Shape& shape() const { return shape_; }
  const LayerWeights& layer(int index) const { return layers_[index]; }
  const PackedMatrix& embedding() const { return embedding_; }
  const PackedMatrix& head() const { return shape_.is_head_tied ? embedding_ : head_; }
  const std::vector<float>& norm() const { return norm_; }

 private:
  struct MatrixPlace {
    PackedMatrix* matrix;
    int64_t rows, columns;
  };
  struct VectorPlace {
    std::vector<float>* values;
    int64_t size;
  };
  std::vector<std::pair<std::string, MatrixPlace>> matrices(int layer);
  std::vector<std::pair<std::string, VectorPlace>> vectors(int layer);

  Shape shape_;
  std::vector<LayerWeights> layers_;
  PackedMatrix embedding_, head_;
  std::vector<float> norm_;
};

// Tokens to compute, flat; spans cut the rows in order.
struct Window {
  std::vector<Span> spans;
  const int64_t* tokens = nullptr;
  const float* inputs = nullptr;  // Rows of the hidden size in place of tokens, if not null.
  int64_t num_rows = 0;
  std::vector<int> taps;  // Layers whose outputs are wanted; -1 the embedding.
};

class Decoder {
 public:
  Decoder(std::shared_ptr<const Weights> weights, std::shared_ptr<ThreadPool> pool, Isa isa,
          Rotary rotary, std::unique_ptr<KvCache> cache);

  // Computes the window and caches its keys and values. Writes the rows after the last layer, not
  // normed, to `hidden` and the taps of every row, side by side, to `features` (may be null).
  void forward(const Window& window, float* hidden, float* features);

  // Caches keys and values that the projections of every layer make of `rows`, as they are, at
  // the positions of the spans. Nothing is attended.
  void write_context(const std::vector<Span>& spans, const float* rows, int64_t num_rows);

  // The final norm; `output` may be `rows`.
  void norm(const float* rows, int64_t num_rows, float* output);

  // Scores over the vocabulary, or over the rows of `part`, of rows after the final norm.
  void logits(const float* normed, int64_t num_rows, float* output,
              const PackedMatrix* part = nullptr);

  const Shape& shape() const { return shape_; }
  const Weights& weights() const { return *weights_; }
  const KvCache& cache() const { return *cache_; }
  ThreadPool& pool() { return *pool_; }

 private:
  void embed(const Window& window, float* hidden);
  void norm_rows(const float* rows, const std::vector<float>& weight, int64_t num_rows,
                 float* output);
  void project(int layer, const float* input, int64_t num_rows, bool with_queries);
  // Norms and turns the heads of every row and caches its keys and values.
  void turn_and_cache(int layer, const std::vector<Span>& spans, bool with_queries);
  void turn_row(int layer, const Span& span, int index, bool with_queries);
  // gate = silu(gate) * up, for every row.
  void gate_rows(int64_t num_rows);
  void reserve(int64_t num_rows);
  void tap(const Window& window, int layer, const float* hidden, float* features);

  std::shared_ptr<const Weights> weights_;
  const Shape shape_;
  std::shared_ptr<ThreadPool> pool_;
  const RowKernels& kernels_;
  Gemm gemm_;
  Rotary rotary_;
  std::unique_ptr<KvCache> cache_;
  Attention attention_;
  std::vector<float> normed_, qkv_, attended_, gate_up_;
};

// The table for an instruction-set level of the products.
const RowKernels& row_kernels_for(Isa isa);

}  // namespace outrider
