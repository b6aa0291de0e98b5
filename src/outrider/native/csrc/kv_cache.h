// Paged keys and values of all layers, addressed by slot like kvcache/pool.py:
// slot of position i = block_table[i / block_size] * block_size + i % block_size.
//
// Sixteen slots of one KV head lie together, keys transposed, so that sixteen scores are computed at
// once without adding up lanes, values behind them; `CodeGroup` has the details.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "row_kernels.h"

namespace outrider {

// 16-bit codes with a scale per slot and head resolve a 4094th of the largest number of a head, are
// multiplied as integers, two at once, and halve the traffic of long contexts against float32,
// which serves comparisons.
enum class KvType { int16, float32 };

class KvCache {
 public:
  // The memory starts as zeros and is only touched where it is written.
  // Throws std::invalid_argument unless block_size is a multiple of kSlotGroup.
  KvCache(int layers, int kv_heads, int head_dim, int64_t num_blocks, int block_size, KvType type);

  int block_size() const { return block_size_; }
  int64_t num_blocks() const { return num_blocks_; }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  int padded_dim() const { return padded_dim_; }
  KvType type() const { return type_; }
  int64_t bytes() const { return bytes_; }

  const void* group(int layer, int kv_head, int64_t slot_group) const {
    return data_ + offset(layer, kv_head, slot_group);
  }

  void write(const RowKernels& kernels, int layer, int kv_head, int64_t slot, const float* key,
             const float* value);

 private:
  size_t offset(int layer, int kv_head, int64_t slot_group) const {
    return ((layer * num_groups_ + slot_group) * kv_heads_ + kv_head) * group_bytes_;
  }

  int kv_heads_, head_dim_, padded_dim_, block_size_;
  int64_t num_blocks_, num_groups_;
  KvType type_;
  size_t group_bytes_;
  int64_t bytes_;
  std::unique_ptr<char, void (*)(void*)> memory_;
  char* data_;
};

}  // namespace outrider
