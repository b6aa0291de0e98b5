// Sixteen lanes in one 512-bit register. The meaning of each function: gemm_lanes_portable.h.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define LANES_INLINE [[gnu::always_inline]] inline

namespace {

struct Lanes {
  using Ints = __m512i;
  using Floats = __m512;
  static constexpr int kBunchRows = 4;
  static constexpr int kRoundedBlocks = 4;
  static constexpr bool kSignedBytes = false;

  LANES_INLINE static Ints zero() { return _mm512_setzero_si512(); }
  LANES_INLINE static Ints splat(int32_t value) { return _mm512_set1_epi32(value); }
  LANES_INLINE static Floats splat(float value) { return _mm512_set1_ps(value); }

  LANES_INLINE static Ints load_ints(const uint8_t* from) { return _mm512_loadu_si512(from); }
  LANES_INLINE static Ints load_code_bytes(const uint8_t* from) { return load_ints(from); }
  LANES_INLINE static Floats load_floats(const uint8_t* from) { return _mm512_loadu_ps(from); }
  LANES_INLINE static Floats load_half(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  LANES_INLINE static Floats load_bf16(const uint8_t* from) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
  }
  LANES_INLINE static Floats load_uint8(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
  }
  LANES_INLINE static Floats load_int8(const uint8_t* from) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  LANES_INLINE static Floats load_some(const float* from, int count) {
    return _mm512_maskz_loadu_ps(first_lanes(count), from);
  }
  LANES_INLINE static void store_some(float* to, Floats value, int count) {
    _mm512_mask_storeu_ps(to, first_lanes(count), value);
  }

  LANES_INLINE static Ints bits(Ints a, int32_t mask) {
    return _mm512_and_si512(a, _mm512_set1_epi32(mask));
  }
  template <int kBits>
  LANES_INLINE static Ints shift_left(Ints a) {
    return _mm512_slli_epi32(a, kBits);
  }
  template <int kBits>
  LANES_INLINE static Ints shift_right(Ints a) {
    return _mm512_srli_epi32(a, kBits);
  }
  LANES_INLINE static Ints merge_bits(Ints base, Ints more, int32_t mask) {
    return _mm512_ternarylogic_epi32(base, more, _mm512_set1_epi32(mask), 0xf8);
  }

  LANES_INLINE static Ints dot(Ints sum, Ints codes, const int8_t* inputs) {
    int32_t quad;
    std::memcpy(&quad, inputs, sizeof quad);
    return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(quad));
  }
  LANES_INLINE static Ints dot_byte(Ints sum, Ints codes, const int8_t* inputs) {
    return dot(sum, codes, inputs);
  }

  LANES_INLINE static Floats floats(Ints a) { return _mm512_cvtepi32_ps(a); }
  LANES_INLINE static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
  LANES_INLINE static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  LANES_INLINE static Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  LANES_INLINE static Floats subtract_product(Floats a, Floats b, Floats c) {
    return _mm512_fnmadd_ps(a, b, c);
  }

  LANES_INLINE static float largest_magnitude(Floats a, Floats b) {
    const Ints mask = _mm512_set1_epi32(0x7fffffff);
    const Ints largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), mask),
                                          _mm512_and_si512(_mm512_castps_si512(b), mask));
    const int32_t bits = _mm512_reduce_max_epi32(largest);
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
  LANES_INLINE static int32_t round_codes(Floats a, int8_t* codes) {
    const Ints rounded = _mm512_cvtps_epi32(a);
    const __m128i bytes = _mm512_cvtsepi32_epi8(rounded);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), bytes);
    return _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(bytes));
  }

  // The two functions above and what lies between them for four blocks of 32, whose reductions
  // and division share registers. largest[i] per block, sums[i] per half of a block.
  LANES_INLINE static void round_blocks(const float* x, float tiny, int8_t* const* codes,
                                        float* largest, int32_t* sums) {
    const Ints a = quarter_maxima(x, x + 32);
    const Ints b = quarter_maxima(x + 64, x + 96);
    // One block per 128-bit quarter, then its maximum in all four lanes of the quarter.
    Ints maxima =
        _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
    maxima = _mm512_max_epi32(maxima, _mm512_shuffle_epi32(maxima, _MM_PERM_BADC));
    maxima = _mm512_max_epi32(maxima, _mm512_shuffle_epi32(maxima, _MM_PERM_CDAB));
    const Floats sizes = _mm512_castsi512_ps(maxima);
    const __mmask16 large = _mm512_cmp_ps_mask(sizes, splat(tiny), _CMP_GT_OQ);
    const Floats inverses = _mm512_maskz_div_ps(large, splat(127.0f), sizes);
    // Compressing straight into memory would be microcode on some processors.
    _mm_storeu_ps(largest, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sizes)));
    round_block<0>(x, inverses, codes[0], sums);
    round_block<1>(x + 32, inverses, codes[1], sums + 2);
    round_block<2>(x + 64, inverses, codes[2], sums + 4);
    round_block<3>(x + 96, inverses, codes[3], sums + 6);
  }

 private:
  LANES_INLINE static Ints magnitudes(const float* x) {
    return _mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(0x7fffffff));
  }
  // Maxima of block x in the lower two quarters, of block y in the upper two.
  LANES_INLINE static Ints quarter_maxima(const float* x, const float* y) {
    const Ints of_x = _mm512_max_epi32(magnitudes(x), magnitudes(x + 16));
    const Ints of_y = _mm512_max_epi32(magnitudes(y), magnitudes(y + 16));
    return _mm512_max_epi32(_mm512_shuffle_i32x4(of_x, of_y, 0x44),
                            _mm512_shuffle_i32x4(of_x, of_y, 0xee));
  }
  template <int kBlock>
  LANES_INLINE static void round_block(const float* x, Floats inverses, int8_t* codes,
                                       int32_t* sums) {
    const Floats inverse = _mm512_shuffle_f32x4(inverses, inverses, kBlock * 0x55);
    const Ints low = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse));
    const Ints high = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), inverse));
    const __m256i bytes = _mm256_inserti128_si256(
        _mm256_castsi128_si256(_mm512_cvtsepi32_epi8(low)), _mm512_cvtsepi32_epi8(high), 1);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), bytes);
    // Unsigned byte sums of each 64 bits; the offsets of eight codes come off again.
    const __m256i offset = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
    const __m256i eights = _mm256_sad_epu8(offset, _mm256_setzero_si256());
    const __m256i halves = _mm256_add_epi64(eights, _mm256_unpackhi_epi64(eights, eights));
    sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(halves)) - 16 * 128;
    sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(halves, 1)) - 16 * 128;
  }
  LANES_INLINE static __mmask16 first_lanes(int count) {
    return static_cast<__mmask16>((1u << count) - 1u);
  }
};

}  // namespace
