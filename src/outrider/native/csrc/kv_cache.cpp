#include "kv_cache.h"

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

namespace outrider {

namespace {

constexpr size_t kAlignment = 64;

}  // namespace

KvCache::KvCache(int layers, int kv_heads, int head_dim, int64_t num_blocks, int block_size,
                 KvType type)
    : kv_heads_(kv_heads),
      head_dim_(head_dim),
      padded_dim_((head_dim + 15) / 16 * 16),
      block_size_(block_size),
      num_blocks_(num_blocks),
      num_groups_(num_blocks * block_size / kSlotGroup),
      type_(type),
      memory_(nullptr, std::free) {
  if (block_size < 1 || block_size % kSlotGroup) {
    throw std::invalid_argument("block_size is " + std::to_string(block_size) +
                                ", but the native runner needs a multiple of 16");
  }
  group_bytes_ = type == KvType::int16
                     ? static_cast<size_t>(CodeGroup{head_dim_, padded_dim_}.bytes())
                     : static_cast<size_t>(head_dim_ + padded_dim_) * kSlotGroup * sizeof(float);
  bytes_ = static_cast<int64_t>(group_bytes_) * num_groups_ * kv_heads * layers;
  // calloc leaves the pages of a big area untouched, aligned_alloc with memset would not.
  memory_.reset(static_cast<char*>(std::calloc(1, bytes_ + kAlignment)));
  if (!memory_) throw std::bad_alloc();
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  data_ = memory_.get() + (kAlignment - address % kAlignment) % kAlignment;
}

void KvCache::write(const RowKernels& kernels, int layer, int kv_head, int64_t slot,
                    const float* key, const float* value) {
  char* group = data_ + offset(layer, kv_head, slot / kSlotGroup);
  const int lane = static_cast<int>(slot % kSlotGroup);
  const auto store = type_ == KvType::int16 ? kernels.store_codes : kernels.store_float;
  store(group, lane, key, value, head_dim_, padded_dim_);
}

}  // namespace outrider
