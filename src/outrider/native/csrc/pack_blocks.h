// One block of 32 weights on its way between GGUF's layout and the tiles.
#pragma once

#include <cstdint>

#include "pack_layout.h"

namespace outrider {

struct Block {
  uint8_t codes[32];           // unsigned; see pack_layout.h
  uint16_t scale = 0;          // float16; for K types that of the 256 inputs around
  uint16_t minimum = 0;        // float16; likewise
  uint8_t sub_scales[2] = {};  // Q4_K, Q5_K: scale, minimum. Q6_K: int8 scales of both halves
};

// Block `index` (of 32 inputs) of a row of quantised GGUF blocks.
Block block_from_gguf(WeightType type, const uint8_t* row, int64_t index);

// Block `index` of output row `lane` of a tile.
Block block_from_tile(WeightType type, const uint8_t* tile, int64_t lane, int64_t index);
void block_to_tile(WeightType type, const Block& block, uint8_t* tile, int64_t lane, int64_t index);

// The 32 numbers a block stands for, in GGUF's order of operations.
void block_to_floats(WeightType type, const Block& block, float* out);

// Rounds 32 numbers to Q4_0, Q4_1 or Q8_0.
Block block_from_floats(WeightType type, const float* values);

}  // namespace outrider
