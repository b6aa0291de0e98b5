// The kernels, written once for every instruction-set level. The including file defines, in an
// anonymous namespace, the type `Lanes` (sixteen 32-bit lanes; see gemm_lanes_portable.h).
//
// Bits: for every output and row, blocks of 32 inputs are folded in ascending order by
//     acc = fma(dot, scale * row_scale, acc)           dot: exact integer
//     acc = fma(minimum, row_sum, acc)                 only for types with a minimum
// or, where the halves of a block have scales of their own, by
//     acc = fma(fma(dot2, scale2, dot1 * scale1), row_scale, acc)
// whatever the number of rows of the group. Offsets of codes go into the integer dot product.

namespace outrider {
namespace {

using Ints = Lanes::Ints;
using Floats = Lanes::Floats;

constexpr int kWords = 8;  // code words (of 4 inputs) per block

// The weights of one block, ready for use by every row of a group.
struct BlockWeights {
  Ints words[kWords];
  Floats scale;
  Floats minimum;         // types with a minimum; for K types to be subtracted
  Floats half_scales[2];  // Q6_K, in place of both
};

struct Supers {
  Floats scale;
  Floats minimum;
};

template <WeightType kType>
LANES_INLINE void unpack_codes(const uint8_t* chunk, int part, BlockWeights& weights) {
  constexpr TileLayout kLayout = tile_layout(kType);
  const uint8_t* low = chunk + part * kLayout.low_bytes;
  if constexpr (kType == WeightType::Q8_0) {
    for (int j = 0; j < kWords; ++j) {
      weights.words[j] = Lanes::load_code_bytes(low + j * kLine);
    }
    return;
  }
  for (int j = 0; j < 4; ++j) {
    const Ints nibbles = Lanes::load_ints(low + j * kLine);
    weights.words[j] = Lanes::bits(nibbles, 0x0f0f0f0f);
    weights.words[j + 4] = Lanes::bits(Lanes::template shift_right<4>(nibbles), 0x0f0f0f0f);
  }
}

// Moves bit 8i + j of each lane to bit 8i + 4 and adds it to code word j.
template <int kWord>
LANES_INLINE void add_fifth_bits(Ints line, BlockWeights& weights) {
  if constexpr (kWord < kWords) {
    const Ints shifted = kWord < 4 ? Lanes::template shift_left < kWord<4 ? 4 - kWord : 0>(line)
                                   : Lanes::template shift_right < kWord<4 ? 0 : kWord - 4>(line);
    weights.words[kWord] = Lanes::merge_bits(weights.words[kWord], shifted, 0x10101010);
    add_fifth_bits<kWord + 1>(line, weights);
  }
}

// Moves bit pair j % 4 of each byte to bits 4 and 5 and adds it to code words kFirst + j.
template <int kFirst>
LANES_INLINE void add_bit_pairs(Ints line, BlockWeights& weights) {
  Ints* words = weights.words + kFirst;
  words[0] = Lanes::merge_bits(words[0], Lanes::template shift_left<4>(line), 0x30303030);
  words[1] = Lanes::merge_bits(words[1], Lanes::template shift_left<2>(line), 0x30303030);
  words[2] = Lanes::merge_bits(words[2], line, 0x30303030);
  words[3] = Lanes::merge_bits(words[3], Lanes::template shift_right<2>(line), 0x30303030);
}

template <WeightType kType>
LANES_INLINE void unpack_block(const uint8_t* chunk, int part, const Supers& supers,
                               BlockWeights& weights) {
  constexpr TileLayout kLayout = tile_layout(kType);
  unpack_codes<kType>(chunk, part, weights);
  const uint8_t* high = chunk + kLayout.high_at() + part * kLayout.high_bytes;
  if constexpr (kLayout.high_bytes == kLine) {
    add_fifth_bits<0>(Lanes::load_ints(high), weights);
  } else if constexpr (kLayout.high_bytes == 2 * kLine) {
    add_bit_pairs<0>(Lanes::load_ints(high), weights);
    add_bit_pairs<4>(Lanes::load_ints(high + kLine), weights);
  }
  const uint8_t* scales = chunk + kLayout.scales_at() + part * kLayout.scale_bytes;
  if constexpr (kType == WeightType::Q6_K) {
    weights.half_scales[0] = Lanes::mul(supers.scale, Lanes::load_int8(scales));
    weights.half_scales[1] = Lanes::mul(supers.scale, Lanes::load_int8(scales + 16));
  } else if constexpr (kLayout.super_bytes != 0) {
    weights.scale = Lanes::mul(supers.scale, Lanes::load_uint8(scales));
    weights.minimum = Lanes::mul(supers.minimum, Lanes::load_uint8(scales + 16));
  } else {
    weights.scale = Lanes::load_half(scales);
    if constexpr (kLayout.has_minimum()) weights.minimum = Lanes::load_half(scales + 32);
  }
}

// Adds the dot products of code words kFirst .. kFirst + kCount - 1 for kRows rows. Neighbouring
// instructions belong to different rows, so that none waits for the one before.
template <WeightType kType, int kFirst, int kCount, int kRows>
LANES_INLINE void add_dots(Ints (&dots)[kRows], const BlockWeights& weights, const int8_t* codes) {
  for (int j = kFirst; j < kFirst + kCount; ++j) {
    for (int row = 0; row < kRows; ++row) {
      const int8_t* inputs = codes + row * kBlockInputs + 4 * j;
      if constexpr (kType == WeightType::Q8_0) {
        dots[row] = Lanes::dot_byte(dots[row], weights.words[j], inputs);
      } else {
        dots[row] = Lanes::dot(dots[row], weights.words[j], inputs);
      }
    }
  }
}

// What a dot product starts from, so that codes count from their offset.
template <WeightType kType>
LANES_INLINE Ints offset_of(int32_t negated_sum) {
  constexpr TileLayout kLayout = tile_layout(kType);
  if constexpr (kLayout.has_minimum() || (kType == WeightType::Q8_0 && Lanes::kSignedBytes)) {
    return Lanes::zero();
  } else {
    return Lanes::template shift_left<kLayout.offset_shift>(Lanes::splat(negated_sum));
  }
}

// Folds one block of kRows rows; `entry` is the place of the first in the group's arrays.
template <WeightType kType, int kRows>
LANES_INLINE void fold_rows(Floats* sums, const BlockWeights& weights, const RowGroup& group,
                            int64_t entry) {
  const int8_t* codes = group.codes + entry * kBlockInputs;
  Ints dots[kRows];
  for (int row = 0; row < kRows; ++row) dots[row] = offset_of<kType>(group.negated[entry + row]);
  add_dots<kType, 0, kWords>(dots, weights, codes);
  for (int row = 0; row < kRows; ++row) {
    const Floats row_scale = Lanes::splat(group.scales[entry + row]);
    const Floats scale = Lanes::mul(weights.scale, row_scale);
    sums[row] = Lanes::fma(Lanes::floats(dots[row]), scale, sums[row]);
    if constexpr (tile_layout(kType).has_minimum()) {
      const Floats row_sum = Lanes::splat(group.sums[entry + row]);
      sums[row] = tile_layout(kType).super_bytes != 0
                      ? Lanes::subtract_product(weights.minimum, row_sum, sums[row])
                      : Lanes::fma(weights.minimum, row_sum, sums[row]);
    }
  }
}

// The same for Q6_K, whose halves of a block have scales of their own.
template <int kRows>
LANES_INLINE void fold_halves(Floats* sums, const BlockWeights& weights, const RowGroup& group,
                              int64_t entry) {
  constexpr WeightType kType = WeightType::Q6_K;
  const int8_t* codes = group.codes + entry * kBlockInputs;
  const int32_t* negated = group.negated_halves + 2 * entry;
  Ints first[kRows];
  Ints second[kRows];
  for (int row = 0; row < kRows; ++row) first[row] = offset_of<kType>(negated[2 * row]);
  add_dots<kType, 0, kWords / 2>(first, weights, codes);
  for (int row = 0; row < kRows; ++row) second[row] = offset_of<kType>(negated[2 * row + 1]);
  add_dots<kType, kWords / 2, kWords / 2>(second, weights, codes);
  for (int row = 0; row < kRows; ++row) {
    const Floats half = Lanes::mul(Lanes::floats(first[row]), weights.half_scales[0]);
    const Floats dot = Lanes::fma(Lanes::floats(second[row]), weights.half_scales[1], half);
    sums[row] = Lanes::fma(dot, Lanes::splat(group.scales[entry + row]), sums[row]);
  }
}

template <WeightType kType, int kRows>
LANES_INLINE void fold_bunches(Floats* sums, const BlockWeights& weights, const RowGroup& group,
                               int64_t entry) {
  constexpr int kBunch = kRows < Lanes::kBunchRows ? kRows : Lanes::kBunchRows;
  if constexpr (kRows > 0) {
    if constexpr (kType == WeightType::Q6_K) {
      fold_halves<kBunch>(sums, weights, group, entry);
    } else {
      fold_rows<kType, kBunch>(sums, weights, group, entry);
    }
    fold_bunches<kType, kRows - kBunch>(sums + kBunch, weights, group, entry + kBunch);
  }
}

LANES_INLINE void store_row(const TileCall& call, int row, Floats sum) {
  float* y = call.y + row * call.ld;
  if (call.accumulate) sum = Lanes::add(Lanes::load_some(y, call.outputs), sum);
  Lanes::store_some(y, sum, call.outputs);
}

template <WeightType kType, int kRows>
void quantized_tile(const TileCall& call) {
  constexpr TileLayout kLayout = tile_layout(kType);
  constexpr int kParts = kLayout.blocks;
  Floats sums[kRows];
  for (int row = 0; row < kRows; ++row) sums[row] = Lanes::splat(0.0f);
  const int64_t blocks = call.in_features / kBlockInputs;
  const uint8_t* chunk = call.tile;
  const uint8_t* prefetch = call.prefetch;
  const uint8_t* prefetch_end = prefetch;
  for (int64_t first = 0; first < blocks; first += kParts, chunk += kLayout.chunk_bytes()) {
    prefetch_end += call.prefetch_step;
    for (; prefetch < prefetch_end; prefetch += kLine) __builtin_prefetch(prefetch, 0, 2);
    Supers supers;
    if constexpr (kLayout.super_bytes != 0) {
      supers.scale = Lanes::load_half(chunk + kLayout.super_at());
      if constexpr (kLayout.has_minimum()) {
        supers.minimum = Lanes::load_half(chunk + kLayout.super_at() + 32);
      }
    }
    const int parts = blocks - first < kParts ? static_cast<int>(blocks - first) : kParts;
    for (int part = 0; part < parts; ++part) {
      BlockWeights weights;
      unpack_block<kType>(chunk, part, supers, weights);
      const int64_t entry = (first + part) * kRows;
      fold_bunches<kType, kRows>(sums, weights, call.group, entry);
    }
  }
  for (int row = 0; row < kRows; ++row) store_row(call, row, sums[row]);
}

template <WeightType kType, int kRows>
void float_tile(const TileCall& call) {
  constexpr size_t kBytes = (kType == WeightType::BF16 ? 2 : 4) * kTileOutputs;
  // Inputs alternate between two sums, so that one row is not bound by the latency of an addition.
  Floats sums[kRows][2];
  for (int row = 0; row < kRows; ++row) sums[row][0] = sums[row][1] = Lanes::splat(0.0f);
  const uint8_t* weights = call.tile;
  const float* x = call.group.plain;
  for (int64_t in = 0; in < call.in_features; in += 2) {
    __builtin_prefetch(weights + 2048, 0, 2);
    for (int part = 0; part < 2 && in + part < call.in_features; ++part, weights += kBytes) {
      const Floats weight =
          kType == WeightType::BF16 ? Lanes::load_bf16(weights) : Lanes::load_floats(weights);
      for (int row = 0; row < kRows; ++row) {
        const Floats input = Lanes::splat(x[row * call.group.plain_stride + in + part]);
        sums[row][part] = Lanes::fma(weight, input, sums[row][part]);
      }
    }
  }
  for (int row = 0; row < kRows; ++row) {
    store_row(call, row, Lanes::add(sums[row][0], sums[row][1]));
  }
}

// Blocks of smaller numbers round to zero: the inverse of their scale would overflow.
constexpr float kTiny = 1e-30f;

LANES_INLINE void put_entry(const RowTarget& target, int64_t entry, float largest, int32_t first,
                            int32_t second) {
  const float scale = largest * (1.0f / 127.0f);
  target.scales[entry] = scale;
  target.sums[entry] = scale * static_cast<float>(first + second);
  target.negated[entry] = -(first + second);
  target.negated_halves[2 * entry] = -first;
  target.negated_halves[2 * entry + 1] = -second;
}

LANES_INLINE void quantize_block(const float* x, int64_t entry, const RowTarget& target) {
  const Floats low = Lanes::load_floats(reinterpret_cast<const uint8_t*>(x));
  const Floats high = Lanes::load_floats(reinterpret_cast<const uint8_t*>(x + 16));
  const float largest = Lanes::largest_magnitude(low, high);
  const Floats inverse = Lanes::splat(largest > kTiny ? 127.0f / largest : 0.0f);
  int8_t* codes = target.codes + entry * kBlockInputs;
  const int32_t first = Lanes::round_codes(Lanes::mul(low, inverse), codes);
  const int32_t second = Lanes::round_codes(Lanes::mul(high, inverse), codes + 16);
  put_entry(target, entry, largest, first, second);
}

// Same operations on every level: the largest magnitude through integer comparison (so that NaN
// stays visible in the scale), one division, rounding to nearest even.
template <typename Lanes>
void quantize_row(const float* x, int64_t begin, int64_t end, int row, const RowTarget& target) {
  int64_t block = begin;
  if constexpr (Lanes::kRoundedBlocks > 1) {
    constexpr int kBlocks = Lanes::kRoundedBlocks;
    for (; block + kBlocks <= end; block += kBlocks) {
      int8_t* codes[kBlocks];
      float largest[kBlocks];
      int32_t sums[2 * kBlocks];
      for (int i = 0; i < kBlocks; ++i) {
        codes[i] = target.codes + ((block + i) * target.rows + row) * kBlockInputs;
      }
      Lanes::round_blocks(x + block * kBlockInputs, kTiny, codes, largest, sums);
      for (int i = 0; i < kBlocks; ++i) {
        const int64_t entry = (block + i) * target.rows + row;
        put_entry(target, entry, largest[i], sums[2 * i], sums[2 * i + 1]);
      }
    }
  }
  for (; block < end; ++block) {
    quantize_block(x + block * kBlockInputs, block * target.rows + row, target);
  }
}

#define TILE_ROW(function, type)                                               \
  {function<type, 1>, function<type, 2>, function<type, 3>, function<type, 4>, \
   function<type, 5>, function<type, 6>, function<type, 7>, function<type, 8>}

}  // namespace

extern const GemmKernels LANES_TABLE;
const GemmKernels LANES_TABLE = {
    quantize_row<Lanes>,
    {
        TILE_ROW(quantized_tile, WeightType::Q4_0),
        TILE_ROW(quantized_tile, WeightType::Q4_1),
        TILE_ROW(quantized_tile, WeightType::Q5_0),
        TILE_ROW(quantized_tile, WeightType::Q5_1),
        TILE_ROW(quantized_tile, WeightType::Q8_0),
        TILE_ROW(quantized_tile, WeightType::Q4_K),
        TILE_ROW(quantized_tile, WeightType::Q5_K),
        TILE_ROW(quantized_tile, WeightType::Q6_K),
        TILE_ROW(float_tile, WeightType::BF16),
        TILE_ROW(float_tile, WeightType::F32),
    },
};

#undef TILE_ROW

}  // namespace outrider
