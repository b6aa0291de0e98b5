#include "quant.h"

#include <stdexcept>

namespace outrider {

namespace {

struct Format {
  WeightType type;
  const char* name;
  int64_t inputs;
  size_t bytes;
};

constexpr Format kFormats[] = {
    {WeightType::Q4_0, "Q4_0", 32, 18},   {WeightType::Q4_1, "Q4_1", 32, 20},
    {WeightType::Q5_0, "Q5_0", 32, 22},   {WeightType::Q5_1, "Q5_1", 32, 24},
    {WeightType::Q8_0, "Q8_0", 32, 34},   {WeightType::Q4_K, "Q4_K", 256, 144},
    {WeightType::Q5_K, "Q5_K", 256, 176}, {WeightType::Q6_K, "Q6_K", 256, 210},
    {WeightType::BF16, "BF16", 1, 2},     {WeightType::F32, "F32", 1, 4},
};

const Format& format_of(WeightType type) {
  return kFormats[static_cast<int>(type)];
}

}  // namespace

const char* weight_type_name(WeightType type) {
  return format_of(type).name;
}

WeightType weight_type_from_name(const std::string& name) {
  std::string known;
  for (const Format& format : kFormats) {
    if (name == format.name) return format.type;
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  throw std::invalid_argument("weight type '" + name + "' is not supported; supported are " +
                              known);
}

int64_t block_inputs(WeightType type) {
  return format_of(type).inputs;
}

size_t block_bytes(WeightType type) {
  return format_of(type).bytes;
}

size_t file_bytes(WeightType type, int64_t out_features, int64_t in_features) {
  const Format& format = format_of(type);
  return static_cast<size_t>(out_features * (in_features / format.inputs)) * format.bytes;
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  float value;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t biased = exponent == 0x1fu ? 0xffu : exponent + 112u;
  const uint32_t word = sign | biased << 23 | mantissa << 13;
  __builtin_memcpy(&value, &word, sizeof value);
  return value;
}

uint16_t float_to_half(float value) {
  uint32_t word;
  __builtin_memcpy(&word, &value, sizeof word);
  const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000u);
  const uint32_t magnitude = word & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 rounds the magnitude to a multiple of 2^-24 in the low mantissa bits.
    float shifted;
    __builtin_memcpy(&shifted, &magnitude, sizeof shifted);
    shifted += 0.5f;
    uint32_t rounded;
    __builtin_memcpy(&rounded, &shifted, sizeof rounded);
    return static_cast<uint16_t>(sign | (rounded - 0x3f000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<uint16_t>(sign | ((magnitude + 0xfffu + odd - 0x38000000u) >> 13));
}

}  // namespace outrider
