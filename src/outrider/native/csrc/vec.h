// Sixteen float lanes on any machine, through the vector extensions of GCC and Clang.
//
// Every instruction set has the same sixteen lanes and the same order of additions, and nothing is
// contracted to fused multiply-add (-ffp-contract=off), so what is written with these gives the
// same bits on AVX-512, AVX2, NEON and plain C++. Included once per instruction set.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
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
typedef int16_t CodePart __attribute__((vector_size(kPartLanes * 2)));

struct Vec {
  Part part[kParts];
};
struct Mask {
  IntPart part[kParts];
};
// Sixteen 32-bit integers, or pairs of 16-bit ones.
struct Ints {
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

// The first `count` lanes of `v`, the others of `rest`.
OUTRIDER_INLINE Vec first_lanes(Vec v, int count, Vec rest) {
  Vec result;
  OUTRIDER_EACH_PART {
    IntPart lanes;
    for (int lane = 0; lane < kPartLanes; lane++) lanes[lane] = i * kPartLanes + lane;
    result.part[i] = lanes < count ? v.part[i] : rest.part[i];
  }
  return result;
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

// The lanes of `part` from lane `first` on, wrapped around.
template <int kFirst>
OUTRIDER_INLINE IntPart turned(IntPart part) {
  IntPart lanes;
  for (int i = 0; i < kPartLanes; i++) lanes[i] = (i + kFirst) % kPartLanes;
#if defined(__clang__)
  IntPart result;
  for (int i = 0; i < kPartLanes; i++) result[i] = part[lanes[i]];
  return result;
#else
  return __builtin_shuffle(part, lanes);
#endif
}

template <int kHalf, class P, class Combine>
OUTRIDER_INLINE P halve(P part, Combine combine) {
  if constexpr (kHalf == 0) {
    return part;
  } else {
    return halve<kHalf / 2>(combine(part, (P)turned<kHalf>((IntPart)part)), combine);
  }
}

// Combines all lanes by halves: (0..7) with (8..15), then (0..3) with (4..7), and so on.
template <class V, class Combine>
OUTRIDER_INLINE auto reduce(V v, Combine combine) {
#pragma GCC unroll 4
  for (int half = kParts / 2; half; half /= 2) {
#pragma GCC unroll 4
    for (int i = 0; i < half; i++) v.part[i] = combine(v.part[i], v.part[i + half]);
  }
  return halve<kPartLanes / 2>(v.part[0], combine)[0];
}

OUTRIDER_INLINE float sum_lanes(Vec v) {
  return reduce(v, [](Part a, Part b) { return a + b; });
}

OUTRIDER_INLINE float max_lanes(Vec v) {
  return reduce(v, [](Part a, Part b) { return a < b ? b : a; });
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

OUTRIDER_INLINE Ints no_ints() {
  Ints result;
  OUTRIDER_EACH_PART result.part[i] = IntPart{};
  return result;
}

OUTRIDER_INLINE Ints load_ints(const void* from) {
  Ints loaded;
  std::memcpy(&loaded, from, sizeof loaded);
  return loaded;
}

// The same two 16-bit integers in every lane.
OUTRIDER_INLINE Ints splat_pair(const void* from) {
  int32_t pair;
  std::memcpy(&pair, from, sizeof pair);
  Ints result;
  OUTRIDER_EACH_PART result.part[i] = pair - IntPart{};
  return result;
}

// sum + a.low * b.low + a.high * b.high in every lane, exact modulo 2^32.
OUTRIDER_INLINE Ints add_pair_products(Ints sum, Ints a, Ints b) {
#if defined(__AVX512VNNI__)
  sum.part[0] =
      (IntPart)_mm512_dpwssd_epi32((__m512i)sum.part[0], (__m512i)a.part[0], (__m512i)b.part[0]);
#elif defined(__AVX2__)
  OUTRIDER_EACH_PART sum.part[i] +=
      (IntPart)_mm256_madd_epi16((__m256i)a.part[i], (__m256i)b.part[i]);
#elif defined(__SSE2__)
  OUTRIDER_EACH_PART sum.part[i] += (IntPart)_mm_madd_epi16((__m128i)a.part[i], (__m128i)b.part[i]);
#else
  OUTRIDER_EACH_PART {
    const IntPart low = (a.part[i] << 16 >> 16) * (b.part[i] << 16 >> 16);
    sum.part[i] += low + (a.part[i] >> 16) * (b.part[i] >> 16);
  }
#endif
  return sum;
}

OUTRIDER_INLINE Vec floats(Ints a) {
  Vec result;
  OUTRIDER_EACH_PART result.part[i] = __builtin_convertvector(a.part[i], Part);
  return result;
}

// Rounds numbers below 2^22 to nearest even and keeps the low sixteen bits of each.
OUTRIDER_INLINE void round_codes(int16_t* to, Vec v) {
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa.
  v = v + 12582912.0f;
  OUTRIDER_EACH_PART {
    const CodePart codes = __builtin_convertvector((IntPart)v.part[i] - 0x4b400000, CodePart);
    std::memcpy(to + i * kPartLanes, &codes, sizeof codes);
  }
}

// Larger magnitudes, lane by lane; NaN counts as larger than any number.
OUTRIDER_INLINE Vec larger_magnitude(Vec a, Vec b) {
  Vec result;
  OUTRIDER_EACH_PART {
    const IntPart x = (IntPart)a.part[i] & 0x7fffffff, y = (IntPart)b.part[i] & 0x7fffffff;
    result.part[i] = (Part)(x > y ? x : y);
  }
  return result;
}

// The largest lane of magnitudes; NaN counts as larger than any number.
OUTRIDER_INLINE float largest_lane(Vec magnitudes) {
  Ints bits;
  OUTRIDER_EACH_PART bits.part[i] = (IntPart)magnitudes.part[i];
  const int32_t largest = reduce(bits, [](IntPart a, IntPart b) { return a < b ? b : a; });
  float result;
  std::memcpy(&result, &largest, sizeof result);
  return result;
}

// a * b + c, rounded once.
OUTRIDER_INLINE Vec fma(Vec a, Vec b, Vec c) {
  OUTRIDER_EACH_PART {
#if defined(__AVX512F__)
    c.part[i] = (Part)_mm512_fmadd_ps((__m512)a.part[i], (__m512)b.part[i], (__m512)c.part[i]);
#elif defined(__FMA__)
    c.part[i] = (Part)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i], (__m256)c.part[i]);
#else
    for (int lane = 0; lane < kPartLanes; lane++) {
      c.part[i][lane] = __builtin_fmaf(a.part[i][lane], b.part[i][lane], c.part[i][lane]);
    }
#endif
  }
  return c;
}

// At least `low`; NaN stays NaN.
OUTRIDER_INLINE Vec at_least(Vec v, float low) {
  const Vec bound = splat(low);
#if defined(__AVX512F__)
  v.part[0] = (Part)_mm512_max_ps((__m512)bound.part[0], (__m512)v.part[0]);
#elif defined(__AVX2__)
  OUTRIDER_EACH_PART v.part[i] = (Part)_mm256_max_ps((__m256)bound.part[i], (__m256)v.part[i]);
#else
  v = select(v < bound, bound, v);
#endif
  return v;
}

// At most `high`; NaN stays NaN.
OUTRIDER_INLINE Vec at_most(Vec v, float high) {
  const Vec bound = splat(high);
#if defined(__AVX512F__)
  v.part[0] = (Part)_mm512_min_ps((__m512)bound.part[0], (__m512)v.part[0]);
#elif defined(__AVX2__)
  OUTRIDER_EACH_PART v.part[i] = (Part)_mm256_min_ps((__m256)bound.part[i], (__m256)v.part[i]);
#else
  v = select(v > bound, bound, v);
#endif
  return v;
}

// e to the power of x, about 2 units in the last place; below -87 it stays at e^-87, NaN stays NaN.
OUTRIDER_INLINE Vec exponential(Vec x) {
  x = at_most(at_least(x, -87.0f), 88.0f);
  // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa.
  const Vec shifted = fma(x, splat(1.44269504f), splat(12582912.0f));
  const Vec whole = shifted - 12582912.0f;
  const Vec rest = fma(whole, splat(2.12194440e-4f), fma(whole, splat(-0.693359375f), x));
  Vec poly = fma(rest, splat(1.9875691500e-4f), splat(1.3981999507e-3f));
  poly = fma(poly, rest, splat(8.3334519073e-3f));
  poly = fma(poly, rest, splat(4.1665795894e-2f));
  poly = fma(poly, rest, splat(1.6666665459e-1f));
  poly = fma(poly, rest, splat(5.0000001201e-1f));
  poly = fma(poly, rest * rest, rest) + 1.0f;
  Vec scale;
  OUTRIDER_EACH_PART {
    const IntPart power = (IntPart)shifted.part[i] - (0x4b400000 - 127);
    scale.part[i] = (Part)(power << 23);
  }
  return poly * scale;
}

// Calls `body(offset, count)` for every vector of a row, the last one possibly partial.
template <class Body>
OUTRIDER_INLINE void for_vectors(int size, Body body) {
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) body(i, kLanes);
  if (i < size) body(i, size - i);
}

OUTRIDER_INLINE Vec load_up_to(const float* from, int count) {
  return count == kLanes ? load(from) : load_some(from, count, splat(0.0f));
}

OUTRIDER_INLINE void store_up_to(float* to, Vec value, int count) {
  if (count == kLanes) {
    store(to, value);
  } else {
    store_some(to, value, count);
  }
}

}  // namespace
