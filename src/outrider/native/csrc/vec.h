// Sixteen float lanes on any machine, through the vector extensions of GCC and Clang.
//
// Every instruction set has the same sixteen lanes and the same order of additions, and nothing is
// contracted to fused multiply-add (-ffp-contract=off), so what is written with these gives the
// same bits on AVX-512, AVX2, NEON and plain C++. Included once per instruction set.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define OUTRIDER_INLINE [[gnu::always_inline]] inline

namespace {

constexpr int kLanes = 16;

// Lanes of one register. Wider vectors than the machine has would live in memory.
#if defined(__AVX512F__)
constexpr int kPartLanes = 16;
#elif defined(__AVX2__)
constexpr int kPartLanes = 8;
#else
constexpr int kPartLanes = 4;
#endif
constexpr int kParts = kLanes / kPartLanes;

typedef float Part __attribute__((vector_size(kPartLanes * 4)));
typedef int32_t IntPart __attribute__((vector_size(kPartLanes * 4)));

struct Vec {
  Part part[kParts];
};
struct Mask {
  IntPart part[kParts];
};

#define OUTRIDER_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < kParts; i++)

#define OUTRIDER_OPERATOR(op)                                   \
  OUTRIDER_INLINE Vec operator op(Vec a, Vec b) {               \
    Vec result;                                                 \
    OUTRIDER_EACH_PART result.part[i] = a.part[i] op b.part[i]; \
    return result;                                              \
  }                                                             \
  OUTRIDER_INLINE Vec operator op(Vec a, float b) {             \
    Vec result;                                                 \
    OUTRIDER_EACH_PART result.part[i] = a.part[i] op b;         \
    return result;                                              \
  }
OUTRIDER_OPERATOR(+)
OUTRIDER_OPERATOR(-)
OUTRIDER_OPERATOR(*)
OUTRIDER_OPERATOR(/)
#undef OUTRIDER_OPERATOR

#define OUTRIDER_OPERATOR(op)                                   \
  OUTRIDER_INLINE Mask operator op(Vec a, Vec b) {              \
    Mask result;                                                \
    OUTRIDER_EACH_PART result.part[i] = a.part[i] op b.part[i]; \
    return result;                                              \
  }
OUTRIDER_OPERATOR(<)
OUTRIDER_OPERATOR(>)
OUTRIDER_OPERATOR(>=)
OUTRIDER_OPERATOR(==)
#undef OUTRIDER_OPERATOR

OUTRIDER_INLINE Vec& operator+=(Vec& a, Vec b) {
  return a = a + b;
}

OUTRIDER_INLINE Vec select(Mask mask, Vec yes, Vec no) {
  Vec result;
  OUTRIDER_EACH_PART result.part[i] = mask.part[i] ? yes.part[i] : no.part[i];
  return result;
}

// Subtracting zero keeps every value, minus zero included, and costs nothing.
OUTRIDER_INLINE Vec splat(float value) {
  Vec result;
  OUTRIDER_EACH_PART result.part[i] = value - Part{};
  return result;
}

OUTRIDER_INLINE Vec load(const float* from) {
  Vec loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

OUTRIDER_INLINE void store(float* to, Vec value) {
  std::memcpy(to, &value, sizeof value);
}

// The first `count` lanes from memory, the others as they are in `rest`.
OUTRIDER_INLINE Vec load_some(const float* from, int count, Vec rest) {
  alignas(64) float lanes[kLanes];
  store(lanes, rest);
  std::memcpy(lanes, from, sizeof(float) * count);
  return load(lanes);
}

OUTRIDER_INLINE void store_some(float* to, Vec value, int count) {
  alignas(64) float lanes[kLanes];
  store(lanes, value);
  std::memcpy(to, lanes, sizeof(float) * count);
}

OUTRIDER_INLINE float first_lane(Vec v) {
  return v.part[0][0];
}

// Whether any lane of a mask is set.
OUTRIDER_INLINE bool any(Mask mask) {
  IntPart all = mask.part[0];
  for (int i = 1; i < kParts; i++) all |= mask.part[i];
  int32_t found = 0;
  for (int i = 0; i < kPartLanes; i++) found |= all[i];
  return found != 0;
}

OUTRIDER_INLINE Vec max(Vec a, Vec b) {
  return select(a < b, b, a);
}

// Lanes are halved: (0..7) with (8..15), then (0..3) with (4..7), and so on.
OUTRIDER_INLINE float sum_lanes(Vec v) {
  alignas(64) float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half; half /= 2) {
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

OUTRIDER_INLINE float max_lanes(Vec v) {
  alignas(64) float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half; half /= 2) {
    for (int i = 0; i < half; i++) {
      lanes[i] = lanes[i] < lanes[i + half] ? lanes[i + half] : lanes[i];
    }
  }
  return lanes[0];
}

// IEEE half precision to single, sixteen at a time.
OUTRIDER_INLINE Vec load(const uint16_t* from) {
  Vec result;
#if defined(__AVX512F__)
  result.part[0] = (Part)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && defined(__F16C__)
  OUTRIDER_EACH_PART result.part[i] =
      (Part)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + i * kPartLanes)));
#else
  alignas(64) float lanes[kLanes];
  for (int i = 0; i < kLanes; i++) {
    // The exponent moves from 5 to 8 bits; a product corrects its bias, and subnormals too.
    const uint32_t bits = from[i], shifted = (bits & 0x7fffu) << 13;
    float size;
    std::memcpy(&size, &shifted, sizeof size);
    size *= 0x1p112f;
    lanes[i] = bits & 0x8000u ? -size : size;
  }
  result = load(lanes);
#endif
  return result;
}

// Rounds to nearest even; beyond the range of half precision it saturates.
OUTRIDER_INLINE void store_half_lanes(uint16_t* to, Vec v) {
  v = select(v < splat(-65504.0f), splat(-65504.0f), v);
  v = select(v > splat(65504.0f), splat(65504.0f), v);
#if defined(__AVX512F__)
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph((__m512)v.part[0], _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__) && defined(__F16C__)
  OUTRIDER_EACH_PART _mm_storeu_si128(
      (__m128i*)(to + i * kPartLanes),
      _mm256_cvtps_ph((__m256)v.part[i], _MM_FROUND_TO_NEAREST_INT));
#else
  alignas(64) uint32_t lanes[kLanes];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < kLanes; i++) {
    const uint32_t sign = (lanes[i] >> 16) & 0x8000u, size = lanes[i] & 0x7fffffffu;
    uint32_t half;
    if (size > 0x7f800000u) {
      half = 0x7e00u;
    } else if (size < 0x38800000u) {
      // Below 2^-14 the step is 2^-24, which is the step of floats from 0.5 on.
      float magnitude;
      std::memcpy(&magnitude, &size, sizeof magnitude);
      magnitude += 0.5f;
      std::memcpy(&half, &magnitude, sizeof half);
      half -= 0x3f000000u;
    } else {
      half = (size + 0xfffu + ((size >> 13) & 1u) - 0x38000000u) >> 13;
    }
    to[i] = static_cast<uint16_t>(half | sign);
  }
#endif
}

// e to the power of x, about 2 units in the last place; below -87 it stays at e^-87, NaN stays NaN.
OUTRIDER_INLINE Vec exponential(Vec x) {
  x = select(x < splat(-87.0f), splat(-87.0f), x);
  x = select(x > splat(88.0f), splat(88.0f), x);
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa.
  const Vec shifted = x * 1.44269504f + 12582912.0f;
  const Vec whole = shifted - 12582912.0f;
  const Vec rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
  Vec poly = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  poly = poly * rest + 8.3334519073e-3f;
  poly = poly * rest + 4.1665795894e-2f;
  poly = poly * rest + 1.6666665459e-1f;
  poly = poly * rest + 5.0000001201e-1f;
  poly = poly * (rest * rest) + rest + 1.0f;
  Vec scale;
  OUTRIDER_EACH_PART {
    const IntPart power = (IntPart)shifted.part[i] - (0x4b400000 - 127);
    scale.part[i] = (Part)(power << 23);
  }
  return poly * scale;
}

}  // namespace
