#include "pack.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "pack_blocks.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace outrider {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSlab = size_t{32} << 20;

std::shared_ptr<uint8_t> allocate_slab(size_t bytes) {
  bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, bytes);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(__linux__)
  // Without huge pages a stream over the weights misses the address cache once per 4 KiB. Only a
  // hint: where it is refused, everything still works.
  madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return {static_cast<uint8_t*>(memory), [](uint8_t* slab) { std::free(slab); }};
}

// Memory for one matrix. Matrices share slabs, so that small ones get huge pages too; a slab
// lives as long as any of its matrices.
std::shared_ptr<uint8_t> allocate_weights(size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<uint8_t> current;
  static size_t used = 0;
  if (bytes >= kSlab / 4) return allocate_slab(bytes);
  const std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<uint8_t> slab = current.lock();
  if (slab == nullptr || used + bytes > kSlab) {
    slab = allocate_slab(kSlab);
    current = slab;
    used = 0;
  }
  std::shared_ptr<uint8_t> part(slab, slab.get() + used);
  used += bytes;
  return part;
}

size_t element_bytes(WeightType type) {
  return type == WeightType::BF16 ? 2 : 4;
}

[[noreturn]] void refuse_width(WeightType type, int64_t in_features, int64_t multiple) {
  throw std::invalid_argument(std::to_string(in_features) + " inputs cannot be packed as " +
                              weight_type_name(type) + ", which needs a multiple of " +
                              std::to_string(multiple));
}

float element(WeightType type, const void* values, int64_t index) {
  if (type == WeightType::F32) {
    float value;
    std::memcpy(&value, static_cast<const uint8_t*>(values) + 4 * index, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, static_cast<const uint8_t*>(values) + 2 * index, sizeof bits);
  return bf16_to_float(bits);
}

}  // namespace

class PackWriter {
 public:
  PackWriter(WeightType type, int64_t out_features, int64_t in_features) {
    if (out_features <= 0 || in_features <= 0) {
      throw std::invalid_argument("a weight matrix of shape [" + std::to_string(out_features) +
                                  ", " + std::to_string(in_features) +
                                  "] cannot be packed; both sizes must be positive");
    }
    if (in_features % block_inputs(type) != 0) {
      refuse_width(type, in_features, block_inputs(type));
    }
    matrix_.type_ = type;
    matrix_.out_features_ = out_features;
    matrix_.in_features_ = in_features;
    matrix_.tiles_ = (out_features + kTileOutputs - 1) / kTileOutputs;
    matrix_.tile_bytes_ = outrider::tile_bytes(type, in_features);
    std::shared_ptr<uint8_t> memory = allocate_weights(matrix_.bytes());
    data_ = memory.get();
    std::memset(data_, 0, matrix_.bytes());
    matrix_.data_ = std::move(memory);
  }

  uint8_t* tile_of(int64_t row) { return data_ + row / kTileOutputs * matrix_.tile_bytes_; }

  void put_block(int64_t row, int64_t index, const Block& block) {
    block_to_tile(matrix_.type_, block, tile_of(row), row % kTileOutputs, index);
  }

  // Spreads one plain row of a float type, `stride` elements apart in the source.
  void put_floats(int64_t row, const uint8_t* from, int64_t stride) {
    const size_t size = element_bytes(matrix_.type_);
    uint8_t* to = tile_of(row) + row % kTileOutputs * size;
    for (int64_t i = 0; i < matrix_.in_features_; ++i) {
      std::memcpy(to + i * kTileOutputs * size, from + i * stride * size, size);
    }
  }

  PackedMatrix finish() { return std::move(matrix_); }

 private:
  PackedMatrix matrix_;
  uint8_t* data_;
};

PackedMatrix pack(WeightType type, const void* blocks, int64_t out_features, int64_t in_features) {
  PackWriter writer(type, out_features, in_features);
  const size_t row_bytes = file_bytes(type, 1, in_features);
  const uint8_t* from = static_cast<const uint8_t*>(blocks);
  for (int64_t row = 0; row < out_features; ++row, from += row_bytes) {
    if (is_float(type)) {
      writer.put_floats(row, from, 1);
      continue;
    }
    for (int64_t index = 0; index < in_features / kBlockInputs; ++index) {
      writer.put_block(row, index, block_from_gguf(type, from, index));
    }
  }
  return writer.finish();
}

PackedMatrix quantize(WeightType target, WeightType source, const void* values,
                      int64_t out_features, int64_t in_features) {
  const bool can_round =
      target == WeightType::Q4_0 || target == WeightType::Q4_1 || target == WeightType::Q8_0;
  if (!can_round || !is_float(source)) {
    throw std::invalid_argument(std::string(weight_type_name(source)) +
                                " weights cannot be rounded to " + weight_type_name(target) +
                                "; sources are BF16 and F32, targets Q4_0, Q4_1 and Q8_0");
  }
  PackWriter writer(target, out_features, in_features);
  float numbers[kBlockInputs];
  for (int64_t row = 0; row < out_features; ++row) {
    for (int64_t index = 0; index < in_features / kBlockInputs; ++index) {
      const int64_t first = row * in_features + index * kBlockInputs;
      for (int64_t i = 0; i < kBlockInputs; ++i) numbers[i] = element(source, values, first + i);
      writer.put_block(row, index, block_from_floats(target, numbers));
    }
  }
  return writer.finish();
}

PackedMatrix select_rows(const PackedMatrix& matrix, const int64_t* rows, int64_t count) {
  const WeightType type = matrix.type();
  PackWriter writer(type, count, matrix.in_features());
  for (int64_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= matrix.out_features()) {
      throw std::invalid_argument("row " + std::to_string(rows[i]) +
                                  " cannot be selected from a matrix of " +
                                  std::to_string(matrix.out_features()) + " rows");
    }
    const uint8_t* tile = matrix.tile(rows[i] / kTileOutputs);
    const int64_t lane = rows[i] % kTileOutputs;
    if (is_float(type)) {
      writer.put_floats(i, tile + lane * element_bytes(type), kTileOutputs);
      continue;
    }
    for (int64_t index = 0; index < matrix.in_features() / kBlockInputs; ++index) {
      writer.put_block(i, index, block_from_tile(type, tile, lane, index));
    }
  }
  return writer.finish();
}

void dequantize_row(const PackedMatrix& matrix, int64_t row, float* out) {
  const WeightType type = matrix.type();
  const uint8_t* tile = matrix.tile(row / kTileOutputs);
  const int64_t lane = row % kTileOutputs;
  if (is_float(type)) {
    for (int64_t i = 0; i < matrix.in_features(); ++i) {
      out[i] = element(type, tile, i * kTileOutputs + lane);
    }
    return;
  }
  for (int64_t index = 0; index < matrix.in_features() / kBlockInputs; ++index) {
    block_to_floats(type, block_from_tile(type, tile, lane, index), out + index * kBlockInputs);
  }
}

}  // namespace outrider
