// Random matrices in GGUF's layout.
#pragma once

#include <cstdint>
#include <vector>

#include "check.h"
#include "pack.h"
#include "quant.h"

namespace outrider_test {

constexpr outrider::WeightType kAllTypes[] = {
    outrider::WeightType::Q4_0, outrider::WeightType::Q4_1, outrider::WeightType::Q5_0,
    outrider::WeightType::Q5_1, outrider::WeightType::Q8_0, outrider::WeightType::Q4_K,
    outrider::WeightType::Q5_K, outrider::WeightType::Q6_K, outrider::WeightType::BF16,
    outrider::WeightType::F32};

// Any bits are valid codes; only the float16 scales must be finite.
inline std::vector<uint8_t> random_blocks(outrider::WeightType type, int64_t out_features,
                                          int64_t in_features, Random& random) {
  using outrider::WeightType;
  std::vector<uint8_t> bytes(outrider::file_bytes(type, out_features, in_features));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.bits());
  const auto put_half = [&](size_t at) {
    const uint16_t half = outrider::float_to_half(random.uniform(-0.02f, 0.02f));
    std::memcpy(&bytes[at], &half, sizeof half);
  };
  const size_t size = outrider::block_bytes(type);
  for (size_t at = 0; at < bytes.size(); at += size) {
    switch (type) {
      case WeightType::Q4_1:
      case WeightType::Q5_1:
      case WeightType::Q4_K:
      case WeightType::Q5_K:
        put_half(at);
        put_half(at + 2);
        break;
      case WeightType::Q6_K:
        put_half(at + 208);
        break;
      case WeightType::F32: {
        const float value = random.uniform(-0.1f, 0.1f);
        std::memcpy(&bytes[at], &value, sizeof value);
        break;
      }
      case WeightType::BF16: {
        const float value = random.uniform(-0.1f, 0.1f);
        std::memcpy(&bytes[at], reinterpret_cast<const uint8_t*>(&value) + 2, 2);
        break;
      }
      default:
        put_half(at);
    }
  }
  return bytes;
}

inline outrider::PackedMatrix random_matrix(outrider::WeightType type, int64_t out_features,
                                            int64_t in_features, Random& random) {
  const std::vector<uint8_t> bytes = random_blocks(type, out_features, in_features, random);
  return outrider::pack(type, bytes.data(), out_features, in_features);
}

}  // namespace outrider_test
