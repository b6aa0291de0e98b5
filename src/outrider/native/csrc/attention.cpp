#include "attention.h"

#include <algorithm>
#include <cstring>

namespace outrider {

namespace {

// Queries of a task: enough to reuse a chunk of keys from the cache, few enough to share the work.
constexpr int kTaskQueries = 24;
// Multiplications that take about as long as handing work to another thread.
constexpr int64_t kWorthSharing = 100'000;

}  // namespace

Attention::Attention(ThreadPool& pool, const RowKernels& kernels, int num_heads)
    : pool_(pool), kernels_(kernels), num_heads_(num_heads) {}

void Attention::plan(const std::vector<Span>& spans, const KvCache& cache) {
  spans_ = &spans;
  head_dim_ = cache.head_dim();
  padded_dim_ = cache.padded_dim();
  queries_per_row_ = num_heads_ / cache.kv_heads();
  rows_per_task_ = std::max(1, kTaskQueries / queries_per_row_);
  const int task_queries = rows_per_task_ * queries_per_row_;
  sums_size_ = static_cast<size_t>(task_queries) * (padded_dim_ + 2);
  scratch_.resize((2 * sums_size_ + static_cast<size_t>(task_queries) * head_dim_) * pool_.size());

  tasks_.clear();
  chunks_.clear();
  slot_groups_.resize(spans.size());
  int64_t work = 0;
  int num_partials = 0;
  for (size_t s = 0; s < spans.size(); s++) {
    const Span& span = spans[s];
    const int64_t context = span.kv_len + span.num_rows;
    slot_groups_[s].clear();
    for (int64_t at = 0; at < context; at += kSlotGroup) {
      slot_groups_[s].push_back(span.slot(at, cache.block_size()) / kSlotGroup);
    }
    work += context * span.num_rows * num_heads_ * head_dim_ * 2;
    // The longest contexts first, so that no thread starts one when the others are done.
    for (int first = (span.num_rows - 1) / rows_per_task_ * rows_per_task_; first >= 0;
         first -= rows_per_task_) {
      const int rows = std::min(rows_per_task_, span.num_rows - first);
      const auto visible = span.visible(first + rows - 1);
      const int chunks = static_cast<int>((visible + kChunk - 1) / kChunk);
      for (int head = 0; head < cache.kv_heads(); head++) {
        tasks_.push_back({static_cast<int>(s), first, rows, head, chunks, num_partials});
        num_partials += chunks;
      }
    }
  }
  const auto enough = static_cast<size_t>(4 * pool_.size());
  is_split_ =
      pool_.size() > 1 && tasks_.size()<enough&& static_cast<size_t>(num_partials)> tasks_.size();
  grain_ = work < kWorthSharing ? num_partials : 1;
  if (!is_split_) return;
  for (size_t t = 0; t < tasks_.size(); t++) {
    for (int chunk = 0; chunk < tasks_[t].num_chunks; chunk++) {
      chunks_.emplace_back(static_cast<int>(t), chunk);
    }
  }
  if (partials_.size() < num_partials * sums_size_) partials_.resize(num_partials * sums_size_);
  if (num_arrived_ < tasks_.size()) {
    num_arrived_ = tasks_.size();
    arrived_ = std::make_unique<std::atomic<int>[]>(num_arrived_);
  }
}

void Attention::run(const KvCache& cache, int layer, const float* queries, int64_t ldq,
                    float* output, int64_t ldo) {
  const Call call{cache, layer, queries, ldq, output, ldo};
  if (is_split_) {
    pool_.parallel_for(chunks_.size(), grain_, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) {
        run_chunk(call, tasks_[chunks_[i].first], chunks_[i].second, worker);
      }
    });
  } else {
    pool_.parallel_for(tasks_.size(), grain_, [&](int64_t begin, int64_t end, int worker) {
      for (int64_t i = begin; i < end; i++) run_task(call, tasks_[i], worker);
    });
  }
}

void Attention::run_task(const Call& call, const Task& task, int worker) {
  const SoftmaxSums sums = scratch(worker, 0), later = scratch(worker, 1);
  const float* queries = gather(call, task, worker);
  attend(call, task, 0, queries, sums);
  for (int chunk = 1; chunk < task.num_chunks; chunk++) {
    attend(call, task, chunk, queries, later);
    merge(task, chunk, sums, later);
  }
  finish(call, task, sums);
}

void Attention::run_chunk(const Call& call, const Task& task, int chunk, int worker) {
  attend(call, task, chunk, gather(call, task, worker), partial(task, chunk));
  std::atomic<int>& arrived = arrived_[&task - tasks_.data()];
  if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < task.num_chunks) return;
  // The last to arrive sees the sums of all chunks, and leaves the counter ready for the next
  // layer.
  arrived.store(0, std::memory_order_relaxed);
  const SoftmaxSums sums = partial(task, 0);
  for (int later = 1; later < task.num_chunks; later++) {
    merge(task, later, sums, partial(task, later));
  }
  finish(call, task, sums);
}

const float* Attention::gather(const Call& call, const Task& task, int worker) {
  const Span& span = (*spans_)[task.span];
  const bool is_rounded = call.cache.type() == KvType::int16;
  float* queries = scratch(worker, 2).values;
  const float* source = call.queries + (span.first_row + task.first) * call.ldq +
                        static_cast<int64_t>(task.kv_head) * queries_per_row_ * head_dim_;
  float* to = queries;
  for (int row = 0; row < task.num_rows; row++, source += call.ldq) {
    for (int i = 0; i < queries_per_row_; i++, to += head_dim_) {
      const float* query = source + static_cast<int64_t>(i) * head_dim_;
      if (is_rounded) {
        kernels_.round_query(query, to, head_dim_);
      } else {
        std::memcpy(to, query, sizeof(float) * head_dim_);
      }
    }
  }
  return queries;
}

void Attention::attend(const Call& call, const Task& task, int chunk, const float* queries,
                       const SoftmaxSums& sums) {
  const int shared = queries_per_row_, num_queries = task.num_rows * shared;
  const auto& slots = slot_groups_[task.span];
  const size_t first = static_cast<size_t>(chunk) * (kChunk / kSlotGroup);
  const size_t last = std::min(slots.size(), first + kChunk / kSlotGroup);
  const void* groups[kChunk / kSlotGroup];
  for (size_t i = first; i < last; i++) {
    groups[i - first] = call.cache.group(call.layer, task.kv_head, slots[i]);
  }
  const ContextChunk context{groups, head_dim_, padded_dim_};
  const auto kernel =
      call.cache.type() == KvType::int16 ? kernels_.attend_codes : kernels_.attend_float;
  // Blocks of even size: seven queries as four and three, not as six and one.
  const int num_blocks = (num_queries + kMaxQueries - 1) / kMaxQueries;
  for (int block = 0, q = 0; block < num_blocks; block++) {
    const int size = (num_queries - q) / (num_blocks - block);
    int counts[kMaxQueries], most = 0;
    for (int i = 0; i < size; i++) {
      counts[i] = count(task, (q + i) / shared, chunk);
      most = std::max(most, counts[i]);
    }
    if (most) {
      kernel(
          context, queries + static_cast<int64_t>(q) * head_dim_, counts, size,
          {sums.values + static_cast<int64_t>(q) * padded_dim_, sums.totals + q, sums.peaks + q});
    }
    q += size;
  }
}

void Attention::merge(const Task& task, int chunk, const SoftmaxSums& earlier,
                      const SoftmaxSums& later) {
  for (int row = 0; row < task.num_rows; row++) {
    if (!count(task, row, chunk)) continue;
    for (int i = 0; i < queries_per_row_; i++) {
      kernels_.merge(earlier, later, row * queries_per_row_ + i, padded_dim_);
    }
  }
}

void Attention::finish(const Call& call, const Task& task, const SoftmaxSums& sums) {
  const Span& span = (*spans_)[task.span];
  for (int row = 0; row < task.num_rows; row++) {
    float* output = call.output + (span.first_row + task.first + row) * call.ldo +
                    static_cast<int64_t>(task.kv_head) * queries_per_row_ * head_dim_;
    for (int i = 0; i < queries_per_row_; i++) {
      const int query = row * queries_per_row_ + i;
      std::memcpy(output + static_cast<int64_t>(i) * head_dim_,
                  sums.values + static_cast<int64_t>(query) * padded_dim_,
                  sizeof(float) * head_dim_);
      kernels_.scale(output + static_cast<int64_t>(i) * head_dim_, 1.0f / sums.totals[query],
                     head_dim_);
    }
  }
}

int Attention::count(const Task& task, int row, int chunk) const {
  const int64_t visible = (*spans_)[task.span].visible(task.first + row);
  const int64_t start = static_cast<int64_t>(chunk) * kChunk;
  return static_cast<int>(std::clamp<int64_t>(visible - start, 0, kChunk));
}

// 0 and 1: sums; 2: the queries of a task, as `values`.
SoftmaxSums Attention::scratch(int worker, int which) {
  const size_t per_worker = scratch_.size() / pool_.size();
  return sums_at(scratch_.data() + worker * per_worker + which * sums_size_);
}

SoftmaxSums Attention::partial(const Task& task, int chunk) {
  return sums_at(partials_.data() + (task.first_partial + chunk) * sums_size_);
}

SoftmaxSums Attention::sums_at(float* memory) const {
  const int queries = rows_per_task_ * queries_per_row_;
  float* totals = memory + static_cast<int64_t>(queries) * padded_dim_;
  return {memory, totals, totals + queries};
}

}  // namespace outrider
