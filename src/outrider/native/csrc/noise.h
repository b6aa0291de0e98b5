// Counter-based noise, equal to sampling/noise.py.

#pragma once

#include <cmath>
#include <cstdint>

namespace outrider {

constexpr uint64_t kMatch = 1;  // sampling.noise.Purpose.MATCH

// One step of sampling.noise.mix, which starts from 0.
inline uint64_t mixed(uint64_t state, uint64_t word) {
  state = state + word + 0x9E3779B97F4A7C15u;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return state ^ (state >> 31);
}

// The key of the noise that matching adds to an output position.
inline uint64_t match_key(uint64_t seed, int64_t position) {
  return mixed(mixed(mixed(0, seed), kMatch), static_cast<uint64_t>(position));
}

// Standard Gumbel noise of a 53-bit word.
inline double gumbel(uint64_t word) {
  const double uniform = (static_cast<double>(word) + 0.5) * 0x1p-53;
  return -std::log(-std::log(uniform));
}

}  // namespace outrider
