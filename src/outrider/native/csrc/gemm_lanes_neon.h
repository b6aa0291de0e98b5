// Sixteen lanes in four 128-bit registers of ARM. The meaning of each function:
// gemm_lanes_portable.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>
#include <cstring>

#define LANES_INLINE [[gnu::always_inline]] inline

namespace {

struct Lanes {
  struct Ints {
    uint32x4_t part[4];
  };
  struct Floats {
    float32x4_t part[4];
  };
  static constexpr int kBunchRows = 2;
  static constexpr int kRoundedBlocks = 1;
  // The dot product takes signed bytes on both sides.
  static constexpr bool kSignedBytes = true;

  template <typename Each>
  LANES_INLINE static Ints ints_of(Each each) {
    return {{each(0), each(1), each(2), each(3)}};
  }
  template <typename Each>
  LANES_INLINE static Floats floats_of(Each each) {
    return {{each(0), each(1), each(2), each(3)}};
  }

  LANES_INLINE static Ints zero() { return splat(int32_t{0}); }
  LANES_INLINE static Ints splat(int32_t value) {
    return ints_of([=](int) { return vreinterpretq_u32_s32(vdupq_n_s32(value)); });
  }
  LANES_INLINE static Floats splat(float value) {
    return floats_of([=](int) { return vdupq_n_f32(value); });
  }

  LANES_INLINE static Ints load_ints(const uint8_t* from) {
    return ints_of([=](int i) { return vreinterpretq_u32_u8(vld1q_u8(from + 16 * i)); });
  }
  LANES_INLINE static Ints load_code_bytes(const uint8_t* from) {
    const uint8x16_t offset = vdupq_n_u8(128);
    return ints_of(
        [=](int i) { return vreinterpretq_u32_u8(veorq_u8(vld1q_u8(from + 16 * i), offset)); });
  }
  LANES_INLINE static Floats load_floats(const uint8_t* from) {
    return floats_of([=](int i) { return vreinterpretq_f32_u8(vld1q_u8(from + 16 * i)); });
  }
  LANES_INLINE static Floats load_half(const uint8_t* from) {
    return floats_of(
        [=](int i) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(from + 8 * i))); });
  }
  LANES_INLINE static Floats load_bf16(const uint8_t* from) {
    return floats_of([=](int i) {
      const uint16x4_t halves = vreinterpret_u16_u8(vld1_u8(from + 8 * i));
      return vreinterpretq_f32_u32(vshll_n_u16(halves, 16));
    });
  }
  LANES_INLINE static Floats load_uint8(const uint8_t* from) {
    const uint8x16_t bytes = vld1q_u8(from);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes));
    const uint16x8_t high = vmovl_u8(vget_high_u8(bytes));
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
             vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
             vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
  }
  LANES_INLINE static Floats load_int8(const uint8_t* from) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(from));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
    const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
             vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  LANES_INLINE static Floats load_some(const float* from, int count) {
    float lanes[16] = {};
    std::memcpy(lanes, from, sizeof(float) * static_cast<size_t>(count));
    return floats_of([&](int i) { return vld1q_f32(lanes + 4 * i); });
  }
  LANES_INLINE static void store_some(float* to, Floats value, int count) {
    float lanes[16];
    for (int i = 0; i < 4; ++i) vst1q_f32(lanes + 4 * i, value.part[i]);
    std::memcpy(to, lanes, sizeof(float) * static_cast<size_t>(count));
  }

  LANES_INLINE static Ints bits(Ints a, int32_t mask) {
    const uint32x4_t masks = vdupq_n_u32(static_cast<uint32_t>(mask));
    return ints_of([&](int i) { return vandq_u32(a.part[i], masks); });
  }
  template <int kBits>
  LANES_INLINE static Ints shift_left(Ints a) {
    return ints_of([&](int i) { return vshlq_n_u32(a.part[i], kBits); });
  }
  template <int kBits>
  LANES_INLINE static Ints shift_right(Ints a) {
    if constexpr (kBits == 0) {
      return a;  // the instruction has no shift by zero
    } else {
      return ints_of([&](int i) { return vshrq_n_u32(a.part[i], kBits); });
    }
  }
  LANES_INLINE static Ints merge_bits(Ints base, Ints more, int32_t mask) {
    const Ints kept = bits(more, mask);
    return ints_of([&](int i) { return vorrq_u32(base.part[i], kept.part[i]); });
  }

  LANES_INLINE static Ints dot(Ints sum, Ints codes, const int8_t* inputs) {
    int32_t quad;
    std::memcpy(&quad, inputs, sizeof quad);
    const int8x16_t quads = vreinterpretq_s8_s32(vdupq_n_s32(quad));
    return ints_of([&](int i) {
      return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum.part[i]),
                                             vreinterpretq_s8_u32(codes.part[i]), quads));
    });
  }
  LANES_INLINE static Ints dot_byte(Ints sum, Ints codes, const int8_t* inputs) {
    return dot(sum, codes, inputs);
  }

  LANES_INLINE static Floats floats(Ints a) {
    return floats_of([&](int i) { return vcvtq_f32_s32(vreinterpretq_s32_u32(a.part[i])); });
  }
  LANES_INLINE static Floats add(Floats a, Floats b) {
    return floats_of([&](int i) { return vaddq_f32(a.part[i], b.part[i]); });
  }
  LANES_INLINE static Floats mul(Floats a, Floats b) {
    return floats_of([&](int i) { return vmulq_f32(a.part[i], b.part[i]); });
  }
  LANES_INLINE static Floats fma(Floats a, Floats b, Floats c) {
    return floats_of([&](int i) { return vfmaq_f32(c.part[i], a.part[i], b.part[i]); });
  }
  LANES_INLINE static Floats subtract_product(Floats a, Floats b, Floats c) {
    return floats_of([&](int i) { return vfmsq_f32(c.part[i], a.part[i], b.part[i]); });
  }

  LANES_INLINE static float largest_magnitude(Floats a, Floats b) {
    uint32x4_t largest = vdupq_n_u32(0);
    for (int i = 0; i < 4; ++i) {
      largest = vmaxq_u32(largest, magnitude(a.part[i]));
      largest = vmaxq_u32(largest, magnitude(b.part[i]));
    }
    const uint32_t bits = vmaxvq_u32(largest);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  LANES_INLINE static int32_t round_codes(Floats a, int8_t* codes) {
    int16x4_t words[4];
    for (int i = 0; i < 4; ++i) words[i] = vqmovn_s32(vcvtnq_s32_f32(a.part[i]));
    const int8x8_t low = vqmovn_s16(vcombine_s16(words[0], words[1]));
    const int8x8_t high = vqmovn_s16(vcombine_s16(words[2], words[3]));
    const int8x16_t bytes = vcombine_s8(low, high);
    vst1q_s8(codes, bytes);
    return vaddlvq_s8(bytes);
  }

 private:
  LANES_INLINE static uint32x4_t magnitude(float32x4_t a) {
    return vandq_u32(vreinterpretq_u32_f32(a), vdupq_n_u32(0x7fffffffu));
  }
};

}  // namespace
