// Weight matrices in the layout of the kernels: lossless repacking of GGUF blocks, and
// quantisation at load for checkpoints that come in bf16 or float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "quant.h"

namespace outrider {

// Output rows interleaved in one tile: one 512-bit register of 32-bit lanes.
constexpr int64_t kTileOutputs = 16;

// Inputs that share one weight scale and one activation scale.
constexpr int64_t kBlockInputs = 32;

// An immutable matrix of shape [out_features, in_features], held in tiles of sixteen output rows.
// Copying shares the memory.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  WeightType type() const { return type_; }
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  bool empty() const { return data_ == nullptr; }

  // Bytes of the packed weights (what one product reads).
  size_t bytes() const { return static_cast<size_t>(tiles_) * tile_bytes_; }

  int64_t tiles() const { return tiles_; }
  size_t tile_bytes() const { return tile_bytes_; }
  const uint8_t* tile(int64_t index) const { return data_.get() + index * tile_bytes_; }

 private:
  friend class PackWriter;
  WeightType type_ = WeightType::F32;
  int64_t out_features_ = 0;
  int64_t in_features_ = 0;
  int64_t tiles_ = 0;
  size_t tile_bytes_ = 0;
  std::shared_ptr<const uint8_t> data_;
};

// Repacks a matrix in GGUF's layout, holding exactly the same numbers. For BF16 and F32 `blocks`
// is the plain row-major matrix. Throws std::invalid_argument when in_features is not a multiple
// of the type's block.
PackedMatrix pack(WeightType type, const void* blocks, int64_t out_features, int64_t in_features);

// Quantises a row-major matrix of `source` (BF16 or F32) to `target` (Q8_0, Q4_0 or Q4_1) and packs
// it. in_features must be a multiple of 32. `q4` loads use Q4_1, `q8` loads Q8_0.
PackedMatrix quantize(WeightType target, WeightType source, const void* values,
                      int64_t out_features, int64_t in_features);

// A new matrix of the given output rows, in that order (a head over part of the vocabulary).
PackedMatrix select_rows(const PackedMatrix& matrix, const int64_t* rows, int64_t count);

// Writes the in_features float32 numbers of one output row, equal to GGUF's own dequantisation.
void dequantize_row(const PackedMatrix& matrix, int64_t row, float* out);

}  // namespace outrider
