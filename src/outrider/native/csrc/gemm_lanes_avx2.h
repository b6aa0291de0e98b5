// Sixteen lanes in two 256-bit registers. The meaning of each function: gemm_lanes_portable.h.
// Compiled with AVX-VNNI enabled, it uses that for the dot products.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define LANES_INLINE [[gnu::always_inline]] inline

namespace {

struct Lanes {
  struct Ints {
    __m256i low, high;
  };
  struct Floats {
    __m256 low, high;
  };
  // vpmaddubsw saturates at 16 bits for codes above 128, unless the sign moves to the inputs.
  static constexpr int kBunchRows = 2;
  static constexpr int kRoundedBlocks = 1;
  static constexpr bool kSignedBytes = true;

  LANES_INLINE static Ints both(__m256i value) { return {value, value}; }

  LANES_INLINE static Ints zero() { return both(_mm256_setzero_si256()); }
  LANES_INLINE static Ints splat(int32_t value) { return both(_mm256_set1_epi32(value)); }
  LANES_INLINE static Floats splat(float value) {
    return {_mm256_set1_ps(value), _mm256_set1_ps(value)};
  }

  LANES_INLINE static Ints load_ints(const uint8_t* from) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32))};
  }
  LANES_INLINE static Ints load_code_bytes(const uint8_t* from) {
    const Ints codes = load_ints(from);
    const __m256i offset = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(codes.low, offset), _mm256_xor_si256(codes.high, offset)};
  }
  LANES_INLINE static Floats load_floats(const uint8_t* from) {
    return {_mm256_loadu_ps(reinterpret_cast<const float*>(from)),
            _mm256_loadu_ps(reinterpret_cast<const float*>(from + 32))};
  }
  LANES_INLINE static Floats load_half(const uint8_t* from) {
    return {_mm256_cvtph_ps(load_128(from)), _mm256_cvtph_ps(load_128(from + 16))};
  }
  LANES_INLINE static Floats load_bf16(const uint8_t* from) {
    const __m256i low = _mm256_cvtepu16_epi32(load_128(from));
    const __m256i high = _mm256_cvtepu16_epi32(load_128(from + 16));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(high, 16))};
  }
  LANES_INLINE static Floats load_uint8(const uint8_t* from) {
    const __m128i bytes = load_128(from);
    return floats({_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))});
  }
  LANES_INLINE static Floats load_int8(const uint8_t* from) {
    const __m128i bytes = load_128(from);
    return floats({_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))});
  }
  LANES_INLINE static Floats load_some(const float* from, int count) {
    float lanes[16] = {};
    std::memcpy(lanes, from, sizeof(float) * static_cast<size_t>(count));
    return {_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8)};
  }
  LANES_INLINE static void store_some(float* to, Floats value, int count) {
    float lanes[16];
    _mm256_storeu_ps(lanes, value.low);
    _mm256_storeu_ps(lanes + 8, value.high);
    std::memcpy(to, lanes, sizeof(float) * static_cast<size_t>(count));
  }

  LANES_INLINE static Ints bits(Ints a, int32_t mask) {
    const __m256i masks = _mm256_set1_epi32(mask);
    return {_mm256_and_si256(a.low, masks), _mm256_and_si256(a.high, masks)};
  }
  template <int kBits>
  LANES_INLINE static Ints shift_left(Ints a) {
    return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
  }
  template <int kBits>
  LANES_INLINE static Ints shift_right(Ints a) {
    return {_mm256_srli_epi32(a.low, kBits), _mm256_srli_epi32(a.high, kBits)};
  }
  LANES_INLINE static Ints merge_bits(Ints base, Ints more, int32_t mask) {
    const Ints kept = bits(more, mask);
    return {_mm256_or_si256(base.low, kept.low), _mm256_or_si256(base.high, kept.high)};
  }

  LANES_INLINE static Ints dot(Ints sum, Ints codes, const int8_t* inputs) {
    const __m256i quads = _mm256_set1_epi32(quad(inputs));
    return {dot_256(sum.low, codes.low, quads), dot_256(sum.high, codes.high, quads)};
  }
  LANES_INLINE static Ints dot_byte(Ints sum, Ints codes, const int8_t* inputs) {
    const __m256i quads = _mm256_set1_epi32(quad(inputs));
    return {dot_256(sum.low, _mm256_abs_epi8(codes.low), _mm256_sign_epi8(quads, codes.low)),
            dot_256(sum.high, _mm256_abs_epi8(codes.high), _mm256_sign_epi8(quads, codes.high))};
  }

  LANES_INLINE static Floats floats(Ints a) {
    return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
  }
  LANES_INLINE static Floats add(Floats a, Floats b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  LANES_INLINE static Floats mul(Floats a, Floats b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  LANES_INLINE static Floats fma(Floats a, Floats b, Floats c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  LANES_INLINE static Floats subtract_product(Floats a, Floats b, Floats c) {
    return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
  }

  LANES_INLINE static float largest_magnitude(Floats a, Floats b) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    const auto magnitude = [&](__m256 v) { return _mm256_and_si256(_mm256_castps_si256(v), mask); };
    const __m256i first = _mm256_max_epi32(magnitude(a.low), magnitude(a.high));
    const __m256i second = _mm256_max_epi32(magnitude(b.low), magnitude(b.high));
    const __m256i eight = _mm256_max_epi32(first, second);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(four));
  }
  LANES_INLINE static int32_t round_codes(Floats a, int8_t* codes) {
    const __m256i low = _mm256_cvtps_epi32(a.low);
    const __m256i high = _mm256_cvtps_epi32(a.high);
    // Packing works on 128-bit halves; the permutation puts the sixteen words in order.
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
    int32_t sum = 0;
    for (int i = 0; i < 16; ++i) sum += codes[i];
    return sum;
  }

 private:
  LANES_INLINE static __m128i load_128(const uint8_t* from) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  }
  LANES_INLINE static int32_t quad(const int8_t* inputs) {
    int32_t value;
    std::memcpy(&value, inputs, sizeof value);
    return value;
  }
  LANES_INLINE static __m256i dot_256(__m256i sum, __m256i codes, __m256i inputs) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, codes, inputs);
#else
    const __m256i pairs = _mm256_maddubs_epi16(codes, inputs);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
  }
};

}  // namespace
