#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "check.h"
#include "gemm.h"
#include "pack_layout.h"
#include "random_weights.h"

namespace outrider_test {

namespace {

using namespace outrider;

// What the kernels make of one row of activations, in double precision.
std::vector<double> rounded_inputs(const float* x, int64_t in_features) {
  std::vector<double> rounded(static_cast<size_t>(in_features));
  for (int64_t first = 0; first < in_features; first += 32) {
    float largest = 0.0f;
    for (int64_t i = first; i < first + 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
    const double scale = largest * (1.0f / 127.0f);
    for (int64_t i = first; i < first + 32; ++i) {
      rounded[static_cast<size_t>(i)] = scale * std::nearbyint(x[i] * inverse);
    }
  }
  return rounded;
}

// The product by definition, and how much rounding in float32 may change it.
void reference_product(const PackedMatrix& matrix, const float* x, double* y, double* slack) {
  const int64_t inputs = matrix.in_features();
  std::vector<double> row_x(x, x + inputs);
  if (!is_float(matrix.type())) row_x = rounded_inputs(x, inputs);
  std::vector<float> weights(static_cast<size_t>(inputs));
  for (int64_t output = 0; output < matrix.out_features(); ++output) {
    dequantize_row(matrix, output, weights.data());
    double sum = 0.0;
    double magnitude = 0.0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double term = static_cast<double>(weights[i]) * row_x[i];
      sum += term;
      magnitude += std::fabs(term);
    }
    y[output] = sum;
    // Codes and minimums of one block cancel, so the parts can exceed the terms.
    slack[output] = 1e-6 * (magnitude + 1.0);
  }
}

std::vector<float> product(Gemm& gemm, const PackedMatrix& matrix, const float* x, int64_t rows) {
  std::vector<float> y(static_cast<size_t>(rows * matrix.out_features()), -7.0f);
  gemm.matmul({{&matrix, y.data(), matrix.out_features(), false}}, x, matrix.in_features(), rows);
  return y;
}

int64_t odd_width(WeightType type, Random& random) {
  const int64_t unit = is_float(type) ? 1 : block_inputs(type);
  return unit * (1 + random.below(is_float(type) ? 200 : unit == 32 ? 9 : 3));
}

// Would catch wrong codes, scales, offsets, tails of any kind, on every level.
void agrees_with_the_definition() {
  ThreadPool pool(2);
  Random random(5);
  for (const Isa isa : available_isas()) {
    Gemm gemm(pool, isa);
    for (const WeightType type : kAllTypes) {
      for (int trial = 0; trial < 6; ++trial) {
        const int64_t inputs = odd_width(type, random);
        const PackedMatrix matrix = random_matrix(type, 1 + random.below(50), inputs, random);
        const int64_t rows = 1 + random.below(12);
        const std::vector<float> x = random.floats(rows * inputs, -3.0f, 2.0f);
        const std::vector<float> y = product(gemm, matrix, x.data(), rows);
        const size_t outputs = static_cast<size_t>(matrix.out_features());
        std::vector<double> expected(outputs), slack(outputs);
        for (int64_t row = 0; row < rows; ++row) {
          reference_product(matrix, x.data() + row * inputs, expected.data(), slack.data());
          for (size_t i = 0; i < outputs; ++i) {
            const double got = y[static_cast<size_t>(row) * outputs + i];
            CHECK(std::fabs(got - expected[i]) <= slack[i],
                  "%s %s [%d, %d] row %d of %d output %d: %.9g, expected %.9g", isa_name(isa),
                  weight_type_name(type), static_cast<int>(outputs), static_cast<int>(inputs),
                  static_cast<int>(row), static_cast<int>(rows), static_cast<int>(i), got,
                  expected[i]);
          }
        }
      }
    }
  }
}

// Would catch a result that depends on its batch mates, the blocking, the threads or the level.
void bits_depend_on_row_and_matrix_only() {
  Random random(6);
  ThreadPool alone(1);
  ThreadPool several(3);
  for (const WeightType type : kAllTypes) {
    const int64_t inputs = is_float(type) ? 203 : 256 * (1 + random.below(2));
    const PackedMatrix matrix = random_matrix(type, 45, inputs, random);
    const std::vector<float> x = random.floats(67 * inputs);
    Gemm one(alone, Isa::portable);
    std::vector<float> expected;
    for (int64_t row = 0; row < 67; ++row) {
      const std::vector<float> y = product(one, matrix, x.data() + row * inputs, 1);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    for (const Isa isa : available_isas()) {
      Gemm gemm(several, isa);
      for (int64_t rows = 1; rows <= 67; ++rows) {
        const int64_t first = 67 - rows;
        const std::vector<float> y = product(gemm, matrix, x.data() + first * inputs, rows);
        CHECK(same_bits(y.data(), expected.data() + first * 45, rows * 45), "%s %s %d rows",
              isa_name(isa), weight_type_name(type), static_cast<int>(rows));
      }
    }
  }
}

// Would catch outputs written to the wrong matrix, row distance or tile, and a lost residual.
void several_matrices_in_one_call() {
  Random random(7);
  ThreadPool pool(2);
  Gemm gemm(pool);
  const PackedMatrix matrices[] = {random_matrix(WeightType::Q4_K, 70, 512, random),
                                   random_matrix(WeightType::Q6_K, 7, 512, random),
                                   random_matrix(WeightType::BF16, 33, 512, random)};
  const int64_t rows = 11;
  const int64_t ldx = 530;
  const std::vector<float> x = random.floats(rows * ldx);
  std::vector<float> fused(static_cast<size_t>(rows * 128), 0.5f);
  std::vector<float> residual(static_cast<size_t>(rows * 33), 0.25f);
  gemm.matmul({{&matrices[0], fused.data(), 128, false},
               {&matrices[1], fused.data() + 70, 128, false},
               {&matrices[2], residual.data(), 33, true}},
              x.data(), ldx, rows);
  for (int64_t row = 0; row < rows; ++row) {
    const float* row_x = x.data() + row * ldx;
    const float* row_y = fused.data() + row * 128;
    CHECK(same_bits(row_y, product(gemm, matrices[0], row_x, 1).data(), 70), "first matrix");
    CHECK(same_bits(row_y + 70, product(gemm, matrices[1], row_x, 1).data(), 7), "second");
    for (int i = 77; i < 128; ++i) CHECK(row_y[i] == 0.5f, "gap %d overwritten", i);
    const std::vector<float> added = product(gemm, matrices[2], row_x, 1);
    for (size_t i = 0; i < 33; ++i) {
      CHECK(residual[static_cast<size_t>(row) * 33 + i] == 0.25f + added[i], "residual");
    }
  }
  const PackedMatrix other = random_matrix(WeightType::Q4_0, 16, 32, random);
  bool refused = false;
  try {
    gemm.matmul({{&matrices[0], fused.data(), 128, false}, {&other, fused.data(), 128, false}},
                x.data(), ldx, 1);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused, "matrices of 512 and 32 inputs in one call");
}

// Would catch a broken activation being rounded away instead of showing in the output.
void nan_and_extremes() {
  Random random(8);
  ThreadPool pool(1);
  const PackedMatrix matrix = random_matrix(WeightType::Q8_0, 16, 64, random);
  for (const Isa isa : available_isas()) {
    Gemm gemm(pool, isa);
    std::vector<float> x = random.floats(64);
    x[40] = std::numeric_limits<float>::quiet_NaN();
    for (const float value : product(gemm, matrix, x.data(), 1)) {
      CHECK(std::isnan(value), "%s hides a NaN", isa_name(isa));
    }
    for (const float size : {0.0f, 1e-42f, 1e-38f, 3e38f}) {
      std::fill(x.begin(), x.end(), size);
      const std::vector<float> y = product(gemm, matrix, x.data(), 1);
      Gemm portable(pool, Isa::portable);
      const std::vector<float> expected = product(portable, matrix, x.data(), 1);
      CHECK(same_bits(y.data(), expected.data(), 16), "%s at %g", isa_name(isa),
            static_cast<double>(size));
    }
  }
}

// Would catch a level that cannot be chosen by the name it prints.
void levels_have_names() {
  for (const Isa isa : available_isas())
    CHECK(isa_from_name(isa_name(isa)) == isa, "%s", isa_name(isa));
  CHECK(isa_from_name("auto") == detect_isa(), "auto");
  bool refused = false;
  try {
    isa_from_name("mmx");
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  CHECK(refused, "mmx");
}

}  // namespace

std::vector<Test> gemm_tests() {
  return {{"gemm: agrees with the definition", agrees_with_the_definition},
          {"gemm: bits depend on row and matrix only", bits_depend_on_row_and_matrix_only},
          {"gemm: several matrices in one call", several_matrices_in_one_call},
          {"gemm: NaN and extremes", nan_and_extremes},
          {"gemm: levels have names", levels_have_names}};
}

}  // namespace outrider_test
