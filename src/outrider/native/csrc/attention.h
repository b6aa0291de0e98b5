// Attention of a ragged window over the paged cache, in an order that depends on nothing but the
// absolute position of a row.
//
// A query sees its context in chunks of kChunk positions counted from the start of the sequence.
// Each chunk has a softmax of its own; chunks are merged in ascending order. Which rows share a
// task, which thread runs it and where the blocks lie changes when something is computed, not what.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kv_cache.h"
#include "row_kernels.h"
#include "threads.h"

namespace outrider {

// Consecutive rows of one sequence at positions from `kv_len` on.
struct Span {
  int64_t first_row;
  int num_rows;
  int64_t kv_len;
  const int32_t* block_table;
  bool is_causal;  // Otherwise every row sees the whole span.

  // Positions that row `index` of the span sees.
  int64_t visible(int index) const { return kv_len + (is_causal ? index + 1 : num_rows); }
  int64_t slot(int64_t position, int block_size) const {
    return static_cast<int64_t>(block_table[position / block_size]) * block_size +
           position % block_size;
  }
};

class Attention {
 public:
  Attention(ThreadPool& pool, const RowKernels& kernels, int num_heads);

  // Cuts the window into tasks; the spans must outlive the calls of `run`.
  void plan(const std::vector<Span>& spans, const KvCache& cache);

  // output[row][head] for every row of the planned window. Queries are rotated and scaled;
  // query head h of a row starts at queries[row * ldq + h * head_dim].
  void run(const KvCache& cache, int layer, const float* queries, int64_t ldq, float* output,
           int64_t ldo);

 private:
  // Rows of one span that are attended together, for one KV head.
  struct Task {
    int span;
    int first;  // Row within the span.
    int num_rows;
    int kv_head;
    int num_chunks;
    int first_partial;
  };
  struct Call {
    const KvCache& cache;
    int layer;
    const float* queries;
    int64_t ldq;
    float* output;
    int64_t ldo;
  };

  void run_task(const Call& call, const Task& task, int worker);
  void run_chunk(const Call& call, const Task& task, int chunk, int worker);
  // Puts the queries of a task, in the form the cache asks for, into the worker's scratch memory.
  const float* gather(const Call& call, const Task& task, int worker);
  void attend(const Call& call, const Task& task, int chunk, const float* queries,
              const SoftmaxSums& sums);
  void merge(const Task& task, int chunk, const SoftmaxSums& earlier, const SoftmaxSums& later);
  void finish(const Call& call, const Task& task, const SoftmaxSums& sums);
  int count(const Task& task, int row, int chunk) const;
  SoftmaxSums scratch(int worker, int which);
  SoftmaxSums partial(const Task& task, int chunk);
  SoftmaxSums sums_at(float* memory) const;

  ThreadPool& pool_;
  const RowKernels& kernels_;
  int num_heads_, queries_per_row_ = 0, rows_per_task_ = 1, head_dim_ = 0, padded_dim_ = 0;
  size_t sums_size_ = 0;
  bool is_split_ = false;
  int64_t grain_ = 1;
  const std::vector<Span>* spans_ = nullptr;
  std::vector<std::vector<int64_t>> slot_groups_;
  std::vector<Task> tasks_;
  std::vector<std::pair<int, int>> chunks_;  // Task and chunk, where tasks are split.
  std::vector<float> scratch_, partials_;
  std::unique_ptr<std::atomic<int>[]> arrived_;
  size_t num_arrived_ = 0;
};

}  // namespace outrider
