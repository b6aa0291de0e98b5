#include <cmath>
#include <stdexcept>

#include "check.h"
#include "pack.h"
#include "random_weights.h"

namespace outrider_test {

namespace {

using namespace outrider;

std::vector<float> dequantized(const PackedMatrix& matrix) {
  std::vector<float> numbers(static_cast<size_t>(matrix.out_features() * matrix.in_features()));
  for (int64_t row = 0; row < matrix.out_features(); ++row) {
    dequantize_row(matrix, row, numbers.data() + row * matrix.in_features());
  }
  return numbers;
}

// Would catch a float16 conversion that is off for subnormals, ties or large numbers.
void half_round_trips() {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = half_to_float(half);
    if (std::isnan(value)) continue;
    CHECK(float_to_half(value) == half, "half %04x", bits);
    const uint16_t next = static_cast<uint16_t>(half + 1);
    if ((half & 0x7fffu) >= 0x7bffu) continue;
    // Halfway to the next number goes to the even one.
    const float middle = 0.5f * (value + half_to_float(next));
    CHECK(float_to_half(middle) == ((half & 1u) != 0 ? next : half), "tie after %04x", bits);
  }
}

// Would catch a layout that spends more memory traffic than the file's.
void packed_size_stays_near_the_file() {
  Random random(2);
  for (const WeightType type : kAllTypes) {
    const PackedMatrix matrix = random_matrix(type, 64, 1536, random);
    const double ratio =
        static_cast<double>(matrix.bytes()) / static_cast<double>(file_bytes(type, 64, 1536));
    CHECK(ratio < 1.1, "%s takes %.3f of the file", weight_type_name(type), ratio);
  }
}

// Would catch codes that change place when rows are taken out of their tile.
void selected_rows_keep_their_numbers() {
  Random random(3);
  for (const WeightType type : kAllTypes) {
    const PackedMatrix matrix = random_matrix(type, 37, 512, random);
    const std::vector<float> all = dequantized(matrix);
    const int64_t rows[] = {36, 0, 17, 17, 5};
    const std::vector<float> some = dequantized(select_rows(matrix, rows, 5));
    for (int64_t i = 0; i < 5; ++i) {
      CHECK(same_bits(&some[static_cast<size_t>(i * 512)], &all[static_cast<size_t>(rows[i] * 512)],
                      512),
            "%s row %d", weight_type_name(type), static_cast<int>(rows[i]));
    }
    bool refused = false;
    try {
      const int64_t outside = 37;
      select_rows(matrix, &outside, 1);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused, "%s row 37 of 37", weight_type_name(type));
  }
}

// Would catch a quantiser whose error exceeds half a step (plus the float16 rounding of its scale).
void rounding_stays_within_half_a_step() {
  Random random(4);
  const std::vector<float> values = random.floats(24 * 320, -0.5f, 0.75f);
  const struct {
    WeightType type;
    float step;
  } cases[] = {{WeightType::Q8_0, 0.75f / 127.0f},
               {WeightType::Q4_1, 1.25f / 15.0f},
               {WeightType::Q4_0, 0.75f / 8.0f}};
  for (const auto& each : cases) {
    const std::vector<float> rounded =
        dequantized(quantize(each.type, WeightType::F32, values.data(), 24, 320));
    float worst = 0.0f;
    for (size_t i = 0; i < values.size(); ++i) {
      worst = std::fmax(worst, std::fabs(values[i] - rounded[i]));
    }
    // Q4_0 has seven steps on its shorter side, so the far end may be half a step further off.
    const float bound = each.type == WeightType::Q4_0 ? 1.01f : 0.51f;
    CHECK(worst <= bound * each.step && worst > 0.2f * each.step, "%s is off by %g",
          weight_type_name(each.type), static_cast<double>(worst));
  }
}

// Would catch a scale of zero turning into NaN.
void zeros_stay_zero() {
  const std::vector<float> values(64, 0.0f);
  for (const WeightType type : {WeightType::Q8_0, WeightType::Q4_1, WeightType::Q4_0}) {
    const std::vector<float> rounded =
        dequantized(quantize(type, WeightType::F32, values.data(), 1, 64));
    for (const float value : rounded) CHECK(value == 0.0f, "%s", weight_type_name(type));
  }
}

// Would catch a read past the end of a row whose width is no whole number of blocks.
void odd_widths_are_refused() {
  const std::vector<uint8_t> bytes(4096);
  bool refused = false;
  try {
    pack(WeightType::Q4_K, bytes.data(), 1, 288);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused, "288 inputs packed as Q4_K");
}

}  // namespace

std::vector<Test> pack_tests() {
  return {{"pack: half round trips", half_round_trips},
          {"pack: packed size stays near the file", packed_size_stays_near_the_file},
          {"pack: selected rows keep their numbers", selected_rows_keep_their_numbers},
          {"pack: rounding stays within half a step", rounding_stays_within_half_a_step},
          {"pack: zeros stay zero", zeros_stay_zero},
          {"pack: odd widths are refused", odd_widths_are_refused}};
}

}  // namespace outrider_test
