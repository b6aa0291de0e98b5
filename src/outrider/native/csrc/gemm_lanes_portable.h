// Sixteen lanes in plain arrays: what the other gemm_lanes_*.h files do with registers. Exact
// integers, IEEE float32, fma rounded once; every level gives these bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define LANES_INLINE inline

namespace {

struct Lanes {
  struct Ints {
    uint32_t lane[16];
  };
  struct Floats {
    float lane[16];
  };

  // Rows whose dot products are formed side by side.
  static constexpr int kBunchRows = 1;
  // Blocks that round_blocks takes at once; 1 if there is no such function.
  static constexpr int kRoundedBlocks = 1;
  // Whether load_code_bytes turns 8-bit codes (offset by 128) into signed bytes.
  static constexpr bool kSignedBytes = false;

  template <typename Each>
  static Ints ints_of(Each each) {
    Ints result;
    for (int i = 0; i < 16; ++i) result.lane[i] = each(i);
    return result;
  }
  template <typename Each>
  static Floats floats_of(Each each) {
    Floats result;
    for (int i = 0; i < 16; ++i) result.lane[i] = each(i);
    return result;
  }

  static Ints zero() { return Ints{}; }
  static Ints splat(int32_t value) {
    return ints_of([=](int) { return static_cast<uint32_t>(value); });
  }
  static Floats splat(float value) {
    return floats_of([=](int) { return value; });
  }

  static Ints load_ints(const uint8_t* from) {
    Ints result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
  }
  static Ints load_code_bytes(const uint8_t* from) { return load_ints(from); }
  static Floats load_floats(const uint8_t* from) {
    Floats result;
    std::memcpy(result.lane, from, sizeof result.lane);
    return result;
  }
  static Floats load_half(const uint8_t* from) {
    uint16_t halves[16];
    std::memcpy(halves, from, sizeof halves);
    return floats_of([&](int i) { return outrider::half_to_float(halves[i]); });
  }
  static Floats load_bf16(const uint8_t* from) {
    uint16_t halves[16];
    std::memcpy(halves, from, sizeof halves);
    return floats_of([&](int i) { return outrider::bf16_to_float(halves[i]); });
  }
  static Floats load_uint8(const uint8_t* from) {
    return floats_of([=](int i) { return static_cast<float>(from[i]); });
  }
  static Floats load_int8(const uint8_t* from) {
    return floats_of([=](int i) { return static_cast<float>(static_cast<int8_t>(from[i])); });
  }
  // The first `count` lanes only; the others are zero, or stay as they are in memory.
  static Floats load_some(const float* from, int count) {
    return floats_of([=](int i) { return i < count ? from[i] : 0.0f; });
  }
  static void store_some(float* to, Floats value, int count) {
    std::memcpy(to, value.lane, sizeof(float) * static_cast<size_t>(count));
  }

  static Ints bits(Ints a, int32_t mask) {
    return ints_of([&](int i) { return a.lane[i] & static_cast<uint32_t>(mask); });
  }
  template <int kBits>
  static Ints shift_left(Ints a) {
    return ints_of([&](int i) { return a.lane[i] << kBits; });
  }
  template <int kBits>
  static Ints shift_right(Ints a) {
    return ints_of([&](int i) { return a.lane[i] >> kBits; });
  }
  // base | (more & mask)
  static Ints merge_bits(Ints base, Ints more, int32_t mask) {
    return ints_of(
        [&](int i) { return base.lane[i] | (more.lane[i] & static_cast<uint32_t>(mask)); });
  }

  // sum + the dot product of each lane's four unsigned bytes (at most 63) with four signed ones.
  static Ints dot(Ints sum, Ints codes, const int8_t* inputs) {
    return ints_of([&](int i) {
      int32_t dot = 0;
      for (int byte = 0; byte < 4; ++byte) {
        dot += static_cast<int32_t>(codes.lane[i] >> (8 * byte) & 255u) * inputs[byte];
      }
      return sum.lane[i] + static_cast<uint32_t>(dot);
    });
  }
  // The same for bytes from load_code_bytes.
  static Ints dot_byte(Ints sum, Ints codes, const int8_t* inputs) {
    return dot(sum, codes, inputs);
  }

  static Floats floats(Ints a) {
    return floats_of([&](int i) { return static_cast<float>(static_cast<int32_t>(a.lane[i])); });
  }
  static Floats add(Floats a, Floats b) {
    return floats_of([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Floats mul(Floats a, Floats b) {
    return floats_of([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  // a * b + c and c - a * b, rounded once.
  static Floats fma(Floats a, Floats b, Floats c) {
    return floats_of([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static Floats subtract_product(Floats a, Floats b, Floats c) {
    return floats_of([&](int i) { return std::fma(-a.lane[i], b.lane[i], c.lane[i]); });
  }

  // The largest |number| of both; NaN counts as larger than any.
  static float largest_magnitude(Floats a, Floats b) {
    uint32_t largest = 0;
    for (int i = 0; i < 32; ++i) {
      uint32_t bits;
      std::memcpy(&bits, (i < 16 ? a.lane : b.lane) + i % 16, sizeof bits);
      bits &= 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    float value;
    std::memcpy(&value, &largest, sizeof value);
    return value;
  }
  // Rounds to nearest even into int8 codes and returns their sum. NaN and what does not fit
  // become some code.
  static int32_t round_codes(Floats a, int8_t* codes) {
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) {
      const float value = a.lane[i];
      const float bounded = value > -128.0f ? (value < 127.0f ? value : 127.0f) : -128.0f;
      codes[i] = static_cast<int8_t>((bounded + 12582912.0f) - 12582912.0f);
      sum += codes[i];
    }
    return sum;
  }
};

}  // namespace
