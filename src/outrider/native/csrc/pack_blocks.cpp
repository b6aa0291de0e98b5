#include "pack_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace outrider {

namespace {

constexpr int kWords = 8;  // code words per block and output row

uint16_t load_u16(const uint8_t* from) {
  uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store_u16(uint8_t* to, uint16_t value) {
  std::memcpy(to, &value, sizeof value);
}

uint32_t load_u32(const uint8_t* from) {
  uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void store_u32(uint8_t* to, uint32_t value) {
  std::memcpy(to, &value, sizeof value);
}

void split_nibbles(const uint8_t* nibbles, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = nibbles[i] & 15;
    codes[i + 16] = nibbles[i] >> 4;
  }
}

// Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: float16 scale, [float16 minimum], [32 fifth bits], codes.
Block simple_block(WeightType type, const uint8_t* from) {
  Block block;
  block.scale = load_u16(from);
  from += 2;
  if (type == WeightType::Q8_0) {
    for (int i = 0; i < 32; ++i) block.codes[i] = static_cast<uint8_t>(from[i] ^ 0x80);
    return block;
  }
  if (tile_layout(type).has_minimum()) {
    block.minimum = load_u16(from);
    from += 2;
  }
  if (tile_layout(type).high_bytes == 0) {
    split_nibbles(from, block.codes);
    return block;
  }
  const uint32_t fifth_bits = load_u32(from);
  split_nibbles(from + 4, block.codes);
  for (int i = 0; i < 32; ++i) {
    block.codes[i] = static_cast<uint8_t>(block.codes[i] | (fifth_bits >> i & 1u) << 4);
  }
  return block;
}

// Q4_K and Q5_K: two float16, eight 6-bit scales and minimums in 12 bytes, [fifth bits], nibbles.
Block min_k_block(WeightType type, const uint8_t* from, int part) {
  Block block;
  block.scale = load_u16(from);
  block.minimum = load_u16(from + 2);
  const uint8_t* packed = from + 4;
  if (part < 4) {
    block.sub_scales[0] = packed[part] & 63;
    block.sub_scales[1] = packed[part + 4] & 63;
  } else {
    const uint8_t low = packed[part + 4];
    block.sub_scales[0] = static_cast<uint8_t>((low & 15) | (packed[part - 4] >> 6) << 4);
    block.sub_scales[1] = static_cast<uint8_t>(low >> 4 | (packed[part] >> 6) << 4);
  }
  const uint8_t* fifth_bits = from + 16;
  const uint8_t* nibbles = from + (type == WeightType::Q5_K ? 48 : 16) + part / 2 * 32;
  for (int i = 0; i < 32; ++i) {
    int code = part % 2 == 0 ? nibbles[i] & 15 : nibbles[i] >> 4;
    if (type == WeightType::Q5_K) code |= (fifth_bits[i] >> part & 1) << 4;
    block.codes[i] = static_cast<uint8_t>(code);
  }
  return block;
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 int8 scales, float16 scale.
Block q6_k_block(const uint8_t* from, int part) {
  Block block;
  block.scale = load_u16(from + 208);
  block.sub_scales[0] = from[192 + 2 * part];
  block.sub_scales[1] = from[192 + 2 * part + 1];
  const int quarter = part % 4;
  const uint8_t* nibbles = from + part / 4 * 64 + quarter % 2 * 32;
  const uint8_t* pairs = from + 128 + part / 4 * 32;
  for (int i = 0; i < 32; ++i) {
    const int low = quarter < 2 ? nibbles[i] & 15 : nibbles[i] >> 4;
    const int high = pairs[i] >> (2 * quarter) & 3;
    block.codes[i] = static_cast<uint8_t>(low | high << 4);
  }
  return block;
}

struct BlockPlace {
  size_t low, high, scales, super;
};

BlockPlace place_of(const TileLayout& layout, int64_t index) {
  const size_t chunk = static_cast<size_t>(index / layout.blocks) * layout.chunk_bytes();
  const size_t part = static_cast<size_t>(index % layout.blocks);
  return {chunk + part * layout.low_bytes, chunk + layout.high_at() + part * layout.high_bytes,
          chunk + layout.scales_at() + part * layout.scale_bytes, chunk + layout.super_at()};
}

// Bits 4 and up of a code word go to line `word / words_per_line` of the high part, shifted so that
// a shift and a mask bring them back in place.
struct HighBits {
  int words_per_line;
  uint32_t mask;  // in the code word
  int width;      // bits per code
};

HighBits high_bits(const TileLayout& layout) {
  if (layout.high_bytes == kLine) return {8, 0x10101010u, 1};
  return {4, 0x30303030u, 2};
}

}  // namespace

Block block_from_gguf(WeightType type, const uint8_t* row, int64_t index) {
  const int64_t per_gguf_block = block_inputs(type) / kBlockInputs;
  const uint8_t* from = row + static_cast<size_t>(index / per_gguf_block) * block_bytes(type);
  const int part = static_cast<int>(index % per_gguf_block);
  switch (type) {
    case WeightType::Q4_K:
    case WeightType::Q5_K:
      return min_k_block(type, from, part);
    case WeightType::Q6_K:
      return q6_k_block(from, part);
    default:
      return simple_block(type, from);
  }
}

void block_to_tile(WeightType type, const Block& block, uint8_t* tile, int64_t lane,
                   int64_t index) {
  const TileLayout layout = tile_layout(type);
  const BlockPlace place = place_of(layout, index);
  uint32_t words[kWords];
  std::memcpy(words, block.codes, sizeof words);
  uint8_t* low = tile + place.low + 4 * lane;
  if (type == WeightType::Q8_0) {
    for (int j = 0; j < kWords; ++j) store_u32(low + j * kLine, words[j]);
  } else {
    for (int j = 0; j < 4; ++j) {
      store_u32(low + j * kLine, (words[j] & 0x0f0f0f0fu) | (words[j + 4] & 0x0f0f0f0fu) << 4);
    }
  }
  if (layout.high_bytes != 0) {
    const HighBits bits = high_bits(layout);
    uint32_t lines[2] = {0, 0};
    for (int j = 0; j < kWords; ++j) {
      lines[j / bits.words_per_line] |=
          (words[j] & bits.mask) >> 4 << (j % bits.words_per_line * bits.width);
    }
    for (int i = 0; i * bits.words_per_line < kWords; ++i) {
      store_u32(tile + place.high + i * kLine + 4 * lane, lines[i]);
    }
  }
  uint8_t* scales = tile + place.scales;
  if (layout.super_bytes == 0) {
    store_u16(scales + 2 * lane, block.scale);
    if (layout.has_minimum()) store_u16(scales + 32 + 2 * lane, block.minimum);
    return;
  }
  scales[lane] = block.sub_scales[0];
  scales[16 + lane] = block.sub_scales[1];
  store_u16(tile + place.super + 2 * lane, block.scale);
  if (layout.has_minimum()) store_u16(tile + place.super + 32 + 2 * lane, block.minimum);
}

Block block_from_tile(WeightType type, const uint8_t* tile, int64_t lane, int64_t index) {
  const TileLayout layout = tile_layout(type);
  const BlockPlace place = place_of(layout, index);
  uint32_t words[kWords];
  const uint8_t* low = tile + place.low + 4 * lane;
  for (int j = 0; j < kWords; ++j) {
    if (type == WeightType::Q8_0) {
      words[j] = load_u32(low + j * kLine);
    } else {
      words[j] = load_u32(low + j % 4 * kLine) >> (j < 4 ? 0 : 4) & 0x0f0f0f0fu;
    }
  }
  if (layout.high_bytes != 0) {
    const HighBits bits = high_bits(layout);
    for (int j = 0; j < kWords; ++j) {
      const uint8_t* line = tile + place.high + j / bits.words_per_line * kLine;
      words[j] |=
          load_u32(line + 4 * lane) >> (j % bits.words_per_line * bits.width) << 4 & bits.mask;
    }
  }
  Block block;
  std::memcpy(block.codes, words, sizeof words);
  const uint8_t* scales = tile + place.scales;
  if (layout.super_bytes == 0) {
    block.scale = load_u16(scales + 2 * lane);
    if (layout.has_minimum()) block.minimum = load_u16(scales + 32 + 2 * lane);
    return block;
  }
  block.sub_scales[0] = scales[lane];
  block.sub_scales[1] = scales[16 + lane];
  block.scale = load_u16(tile + place.super + 2 * lane);
  if (layout.has_minimum()) block.minimum = load_u16(tile + place.super + 32 + 2 * lane);
  return block;
}

void block_to_floats(WeightType type, const Block& block, float* out) {
  const TileLayout layout = tile_layout(type);
  const float scale = half_to_float(block.scale);
  const float minimum = half_to_float(block.minimum);
  for (int i = 0; i < 32; ++i) {
    const int offset = layout.has_minimum() ? 0 : 1 << layout.offset_shift;
    const float code = static_cast<float>(block.codes[i] - offset);
    if (layout.super_bytes == 0) {
      out[i] = layout.has_minimum() ? scale * code + minimum : scale * code;
    } else if (layout.has_minimum()) {
      out[i] = scale * static_cast<float>(block.sub_scales[0]) * code -
               minimum * static_cast<float>(block.sub_scales[1]);
    } else {
      out[i] = scale * static_cast<float>(static_cast<int8_t>(block.sub_scales[i / 16])) * code;
    }
  }
}

Block block_from_floats(WeightType type, const float* values) {
  const auto [low, high] = std::minmax_element(values, values + 32);
  const float largest = std::max(std::fabs(*low), std::fabs(*high));
  Block block;
  float scale = 0.0f;
  float base = 0.0f;  // the number of code 0
  int top = 15;
  if (type == WeightType::Q4_1) {
    block.minimum = float_to_half(*low);
    base = half_to_float(block.minimum);
    scale = (*high - base) / 15.0f;
  } else if (type == WeightType::Q4_0) {
    // Code 0 stands for -8 scales: give the larger side the longer range.
    scale = (-*low >= *high ? -*low : -*high) / 8.0f;
  } else {
    scale = largest / 127.0f;
    top = 255;
  }
  block.scale = float_to_half(scale);
  scale = half_to_float(block.scale);
  if (!tile_layout(type).has_minimum()) {
    base = -scale * static_cast<float>(1 << tile_layout(type).offset_shift);
  }
  for (int i = 0; i < 32; ++i) {
    const float code = scale == 0.0f ? 0.0f : std::nearbyint((values[i] - base) / scale);
    block.codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0f, static_cast<float>(top)));
  }
  return block;
}

}  // namespace outrider
