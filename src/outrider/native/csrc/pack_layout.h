// Where the parts of a weight tile lie. Shared by the packer and the kernels.
//
// A tile holds sixteen output rows. It is a run of chunks, each covering `blocks` blocks of 32
// inputs, so that every chunk is a whole number of 64-byte lines. Within a chunk, lines are grouped
// by kind, and inside a kind by block:
//
//   low    codes' low 4 bits (or all 8 for Q8_0). A code word is the 32-bit lane of one output row
//   that
//          holds its codes for inputs 4j .. 4j+3. Line j holds code words j, and in the high
//          nibbles code words j+4; for 8-bit codes there are eight lines of one word each.
//   high   bit 4 of the codes (Q5): one line, bit 8i+j of a lane belongs to input 4j+i; or
//          bits 4 and 5 (Q6_K): two lines, the first for code words 0..3 in bit pairs, the
//          second for code words 4..7.
//   scales per block and output row: float16 scale, then float16 minimum where the type has one;
//   for
//          Q4_K and Q5_K uint8 scale, uint8 minimum; for Q6_K int8 scales of both halves.
//   super  for K types: float16 scale of the chunk (= 256 inputs), then float16 minimum scale.
//
// Codes are unsigned; the number is scale * (code - offset), or scale * code + minimum.
#pragma once

#include <cstddef>

#include "pack.h"

namespace outrider {

constexpr size_t kLine = 64;

struct TileLayout {
  int blocks;          // blocks of 32 inputs per chunk
  size_t low_bytes;    // per block
  size_t high_bytes;   // per block
  size_t scale_bytes;  // per block
  size_t super_bytes;  // per chunk
  int offset_shift;    // codes are offset by 1 << offset_shift; -1 for types with a minimum

  constexpr size_t high_at() const { return blocks * low_bytes; }
  constexpr size_t scales_at() const { return high_at() + blocks * high_bytes; }
  constexpr size_t super_at() const { return scales_at() + blocks * scale_bytes; }
  constexpr size_t chunk_bytes() const {
    return (super_at() + super_bytes + kLine - 1) / kLine * kLine;
  }
  constexpr bool has_minimum() const { return offset_shift < 0; }
};

constexpr TileLayout tile_layout(WeightType type) {
  switch (type) {
    case WeightType::Q4_0:
      return {2, 256, 0, 32, 0, 3};
    case WeightType::Q4_1:
      return {1, 256, 0, 64, 0, -1};
    case WeightType::Q5_0:
      return {2, 256, 64, 32, 0, 4};
    case WeightType::Q5_1:
      return {1, 256, 64, 64, 0, -1};
    case WeightType::Q8_0:
      return {2, 512, 0, 32, 0, 7};
    case WeightType::Q4_K:
      return {8, 256, 0, 32, 64, -1};
    case WeightType::Q5_K:
      return {8, 256, 64, 32, 64, -1};
    case WeightType::Q6_K:
      return {8, 256, 128, 32, 32, 5};
    default:
      return {0, 0, 0, 0, 0, -1};
  }
}

// BF16 and F32 tiles have no blocks: sixteen numbers per input, inputs ascending.
constexpr bool is_float(WeightType type) {
  return type == WeightType::BF16 || type == WeightType::F32;
}

constexpr size_t tile_bytes(WeightType type, int64_t in_features) {
  if (is_float(type)) {
    const size_t bytes =
        static_cast<size_t>(in_features * kTileOutputs) * (type == WeightType::BF16 ? 2 : 4);
    return (bytes + kLine - 1) / kLine * kLine;
  }
  const TileLayout layout = tile_layout(type);
  const int64_t blocks = in_features / kBlockInputs;
  return static_cast<size_t>((blocks + layout.blocks - 1) / layout.blocks) * layout.chunk_bytes();
}

}  // namespace outrider
