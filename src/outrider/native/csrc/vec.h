// Sixteen float lanes on any machine, through the vector extensions of GCC and Clang.
//
// Every instruction set gets the same sixteen lanes and the same order of additions, and nothing is
// contracted to fused multiply-add (-ffp-contract=off), so what is written with these gives the same
// bits on AVX-512, AVX2, NEON and plain C++. Included once per instruction set, inside a namespace.

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

#define OUTRIDER_INLINE [[gnu::always_inline]] inline

namespace {

constexpr int kLanes = 16;

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef uint32_t WordVec __attribute__((vector_size(64)));
typedef uint16_t HalfVec __attribute__((vector_size(32)));

OUTRIDER_INLINE Vec splat(float value) { return Vec{} + value; }

OUTRIDER_INLINE Vec load(const float* from) {
    Vec loaded;
    std::memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

OUTRIDER_INLINE void store(float* to, Vec value) { std::memcpy(to, &value, sizeof value); }

// The first `count` lanes from memory, the others zero.
OUTRIDER_INLINE Vec load_some(const float* from, int count) {
    Vec loaded{};
    std::memcpy(&loaded, from, sizeof(float) * count);
    return loaded;
}

OUTRIDER_INLINE void store_some(float* to, Vec value, int count) {
    std::memcpy(to, &value, sizeof(float) * count);
}

// IEEE half precision to single. Infinities do not occur: `store_half` saturates.
OUTRIDER_INLINE Vec load(const uint16_t* from) {
#if defined(__AVX512F__)
    return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
    HalfVec half;
    std::memcpy(&half, from, sizeof half);
    const WordVec bits = __builtin_convertvector(half, WordVec);
    // The exponent moves from 5 to 8 bits; a multiplication corrects its bias and subnormals alike.
    const Vec magnitude = (Vec)((bits & 0x7fffu) << 13) * 0x1p112f;
    return (Vec)((WordVec)magnitude | ((bits & 0x8000u) << 16));
#endif
}

template <int kMask>
OUTRIDER_INLINE Vec swap_lanes(Vec v) {
    constexpr auto at = [](int lane) { return lane ^ kMask; };
    return __builtin_shufflevector(v, v, at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7),
                                   at(8), at(9), at(10), at(11), at(12), at(13), at(14), at(15));
}

OUTRIDER_INLINE float sum_lanes(Vec v) {
    v += swap_lanes<8>(v);
    v += swap_lanes<4>(v);
    v += swap_lanes<2>(v);
    v += swap_lanes<1>(v);
    return v[0];
}

OUTRIDER_INLINE Vec max(Vec a, Vec b) { return a < b ? b : a; }

OUTRIDER_INLINE float max_lanes(Vec v) {
    v = max(v, swap_lanes<8>(v));
    v = max(v, swap_lanes<4>(v));
    v = max(v, swap_lanes<2>(v));
    v = max(v, swap_lanes<1>(v));
    return v[0];
}

// e to the power of x, about 2 units in the last place; below -87 it stays at e^-87, NaN stays NaN.
OUTRIDER_INLINE Vec exponential(Vec x) {
    const Vec low = splat(-87.0f), high = splat(88.0f);
    x = x < low ? low : x;
    x = x > high ? high : x;
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the mantissa.
    const Vec shifted = x * 1.44269504f + 12582912.0f;
    const IntVec power = (IntVec)shifted - 0x4b400000;
    const Vec whole = shifted - 12582912.0f;
    const Vec rest = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    Vec poly = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    poly = poly * rest + 8.3334519073e-3f;
    poly = poly * rest + 4.1665795894e-2f;
    poly = poly * rest + 1.6666665459e-1f;
    poly = poly * rest + 5.0000001201e-1f;
    poly = poly * (rest * rest) + rest + 1.0f;
    return poly * (Vec)((power + 127) << 23);
}

}  // namespace
