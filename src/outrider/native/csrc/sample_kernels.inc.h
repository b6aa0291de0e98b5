// The functions of SampleKernels; see row_kernels.inc.h for how this is included.

#include "sample_kernels.h"
#include "vec.h"

namespace {

constexpr int kWideLanes = 8;

typedef double WideVec __attribute__((vector_size(64)));
typedef int64_t LongVec __attribute__((vector_size(64)));
typedef uint64_t KeyVec __attribute__((vector_size(64)));
typedef float HalfWide __attribute__((vector_size(32)));

// The lanes of eight floats, those past `count` minus infinity.
OUTRIDER_INLINE WideVec load_wide(const float* from, int count) {
    HalfWide narrow = HalfWide{} - __builtin_inff();
    std::memcpy(&narrow, from, sizeof(float) * count);
    return __builtin_convertvector(narrow, WideVec);
}

OUTRIDER_INLINE bool any(LongVec lanes) {
    int64_t all = 0;
    for (int i = 0; i < kWideLanes; i++) all |= lanes[i];
    return all != 0;
}

bool largest(const float* row, int64_t size, float* value, int64_t* first) {
    Vec tops = splat(-__builtin_inff());
    IntVec numbers = IntVec{} - 1;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
        const Vec v = load(row + i);
        tops = max(tops, v);
        numbers &= v == v;
    }
    float top = max_lanes(tops);
    bool is_number = true;
    for (int lane = 0; lane < kLanes; lane++) is_number &= numbers[lane] != 0;
    for (; i < size; i++) {
        is_number &= row[i] == row[i];
        top = top < row[i] ? row[i] : top;
    }
    int64_t at = 0;
    while (at < size && row[at] != top) at++;
    *value = top;
    *first = at < size ? at : 0;
    return is_number && __builtin_isfinite(top);
}

// e to the power of x <= 0, within a unit in the last place or so; 0 below -700.
OUTRIDER_INLINE WideVec exponential(WideVec x) {
    const WideVec low = WideVec{} - 700.0;
    const WideVec clamped = x < low ? low : x;
    // Adding 1.5 * 2^52 leaves the rounded integer in the low bits of the mantissa.
    const WideVec shifted = clamped * 1.4426950408889634074 + 6755399441055744.0;
    const LongVec power = (LongVec)shifted - 0x4338000000000000;
    const WideVec whole = shifted - 6755399441055744.0;
    const WideVec rest =
        (clamped - whole * 6.93145751953125e-1) - whole * 1.42860682030941723212e-6;
    constexpr double kInverse[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880,
                                   1.0 / 40320,     1.0 / 5040,     1.0 / 720,     1.0 / 120,
                                   1.0 / 24,        1.0 / 6,        0.5,           1.0,
                                   1.0};
    WideVec poly = WideVec{} + 1.0 / 6227020800.0;
    for (const double term : kInverse) poly = poly * rest + term;
    const WideVec result = poly * (WideVec)((power + 1023) << 52);
    return x < low ? WideVec{} : result;
}

double sum_exp(const float* row, int64_t size, double shift) {
    WideVec sums{};
    for (int64_t i = 0; i < size; i += kWideLanes) {
        const int count = size - i < kWideLanes ? static_cast<int>(size - i) : kWideLanes;
        sums += exponential(load_wide(row + i, count) - shift);
    }
    double total = 0.0;
    for (int lane = 0; lane < kWideLanes; lane++) total += sums[lane];
    return total;
}

int64_t contenders(const float* row, int64_t size, uint64_t key, double bound, uint64_t far,
                   int32_t* indices, uint64_t* words) {
    const WideVec lowest = WideVec{} - __builtin_inf();
    KeyVec token = {0, 1, 2, 3, 4, 5, 6, 7};
    int64_t found = 0;
    for (int64_t i = 0; i < size; i += kWideLanes, token += kWideLanes) {
        const int count = size - i < kWideLanes ? static_cast<int>(size - i) : kWideLanes;
        const WideVec values = load_wide(row + i, count);
        const LongVec possible = values > lowest;
        if (!any(possible)) continue;
        KeyVec state = token * 0x9E3779B97F4A7C15u + key;
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
        state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
        state = (state ^ (state >> 31)) >> 11;
        const LongVec taken = possible & ((values >= bound) | (LongVec)(state >= far));
        if (!any(taken)) continue;
        for (int lane = 0; lane < kWideLanes; lane++) {
            if (!taken[lane]) continue;
            indices[found] = static_cast<int32_t>(i + lane);
            words[found++] = state[lane];
        }
    }
    return found;
}

int64_t at_least(const float* row, int64_t size, float border, int32_t* indices) {
    int64_t found = 0;
    for (int64_t i = 0; i < size; i += kLanes) {
        const int count = size - i < kLanes ? static_cast<int>(size - i) : kLanes;
        Vec values = splat(-__builtin_inff());
        std::memcpy(&values, row + i, sizeof(float) * count);
        // A vector without any is told by its largest lane.
        if (count == kLanes && max_lanes(values) < border) continue;
        for (int lane = 0; lane < count; lane++) {
            if (values[lane] >= border) indices[found++] = static_cast<int32_t>(i + lane);
        }
    }
    return found;
}

constexpr outrider::SampleKernels kSampleTable = {largest, sum_exp, contenders, at_least};

}  // namespace

const outrider::SampleKernels& outrider::OUTRIDER_SAMPLE_TABLE() { return kSampleTable; }
