// Weight formats: GGUF block sizes, and what a row of a packed matrix means in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace outrider {

enum class WeightType { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16, F32 };

const char* weight_type_name(WeightType type);

// The type of that GGUF name ("Q4_K", "BF16", ...). Throws std::invalid_argument when unknown.
WeightType weight_type_from_name(const std::string& name);

// Inputs per GGUF block (32, 256, or 1 for BF16 and F32).
int64_t block_inputs(WeightType type);

// Bytes of one GGUF block.
size_t block_bytes(WeightType type);

// Bytes of a matrix in GGUF's own layout. in_features must be a multiple of block_inputs(type).
size_t file_bytes(WeightType type, int64_t out_features, int64_t in_features);

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);  // round to nearest even

inline float bf16_to_float(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}

}  // namespace outrider
