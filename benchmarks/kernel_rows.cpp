// Time of all linear layers of a model by rows in the window, without attention or anything else.
//
//   kernel_rows SHAPES [threads [isa [repeats]]]
//
// SHAPES is a text file: one line per parallel region, `type out in [type out in ...]`, as written
// by kernel_shapes.py from a GGUF file. Weights are random: only their sizes matter. Prints one
// JSON object: streaming-read bandwidth over the packed weights and, per number of rows, median and
// best.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "gemm.h"

namespace {

using namespace outrider;

struct Layer {
  std::vector<PackedMatrix> matrices;
};

PackedMatrix random_matrix(WeightType type, int64_t out_features, int64_t in_features) {
  std::vector<uint8_t> bytes(file_bytes(type, out_features, in_features));
  uint32_t state = 1;
  for (uint8_t& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    // Bytes below 0x20 keep every float16 scale small and finite.
    byte = static_cast<uint8_t>(state >> 27);
  }
  return pack(type, bytes.data(), out_features, in_features);
}

std::vector<Layer> read_layers(const char* path) {
  std::ifstream file(path);
  std::vector<Layer> layers;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    Layer layer;
    std::string type;
    int64_t out_features = 0;
    int64_t in_features = 0;
    while (words >> type >> out_features >> in_features) {
      layer.matrices.push_back(
          random_matrix(weight_type_from_name(type), out_features, in_features));
    }
    if (!layer.matrices.empty()) layers.push_back(std::move(layer));
  }
  return layers;
}

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Times {
  double median;
  double best;
};

template <typename Run>
Times times_of(int repeats, const Run& run) {
  std::vector<double> times;
  run();
  for (int i = 0; i < repeats; ++i) {
    const double start = seconds();
    run();
    times.push_back(seconds() - start);
  }
  std::sort(times.begin(), times.end());
  return {times[static_cast<size_t>(repeats / 2)], times.front()};
}

struct Model {
  std::vector<Layer> layers;
  size_t bytes = 0;
  int64_t inputs = 0;   // of the widest matrix
  int64_t outputs = 0;  // of the widest region
};

Model read_model(const char* path) {
  Model model;
  model.layers = read_layers(path);
  for (const Layer& layer : model.layers) {
    int64_t outputs = 0;
    for (const PackedMatrix& matrix : layer.matrices) {
      model.bytes += matrix.bytes();
      model.inputs = std::max(model.inputs, matrix.in_features());
      outputs += matrix.out_features();
    }
    model.outputs = std::max(model.outputs, outputs);
  }
  return model;
}

// Sums the weights as 64-bit words: what memory gives to a loop that does nothing else.
Times read_times(const Model& model, ThreadPool& pool, int repeats) {
  std::vector<uint64_t> totals(static_cast<size_t>(pool.size()) * 8);
  return times_of(repeats, [&] {
    for (const Layer& layer : model.layers) {
      for (const PackedMatrix& matrix : layer.matrices) {
        pool.parallel_for(matrix.tiles(), [&](int64_t begin, int64_t end, int worker) {
          const uint8_t* from = matrix.tile(begin);
          const size_t bytes = static_cast<size_t>(end - begin) * matrix.tile_bytes();
          uint64_t sums[8] = {};
          for (size_t at = 0; at < bytes; at += 64) {
            __builtin_prefetch(from + at + 4096, 0, 2);
            uint64_t words[8];
            __builtin_memcpy(words, from + at, 64);
            for (int i = 0; i < 8; ++i) sums[i] += words[i];
          }
          totals[static_cast<size_t>(worker) * 8] += std::accumulate(sums, sums + 8, uint64_t{0});
        });
      }
    }
  });
}

void run_once(const Model& model, Gemm& gemm, const float* x, float* y, int64_t rows) {
  for (const Layer& layer : model.layers) {
    std::vector<Product> products;
    int64_t outputs = 0;
    for (const PackedMatrix& matrix : layer.matrices) outputs += matrix.out_features();
    float* to = y;
    for (const PackedMatrix& matrix : layer.matrices) {
      products.push_back({&matrix, to, outputs, false});
      to += matrix.out_features();
    }
    gemm.matmul(products.data(), products.size(), x, model.inputs, rows);
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) {
    std::fprintf(stderr, "usage: %s SHAPES [threads [isa [repeats [rows...]]]]\n", arguments[0]);
    return 2;
  }
  const int threads = count > 2 ? std::atoi(arguments[2]) : 2;
  const Isa isa = isa_from_name(count > 3 ? arguments[3] : "auto");
  const int repeats = count > 4 ? std::atoi(arguments[4]) : 21;
  std::vector<int64_t> row_counts;
  for (int i = 5; i < count; ++i) row_counts.push_back(std::atoll(arguments[i]));
  if (row_counts.empty()) row_counts = {1, 2, 4, 8, 16, 32, 64};

  const Model model = read_model(arguments[1]);
  const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
  std::vector<float> x(static_cast<size_t>(most * model.inputs));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7 % 31) - 15.0f;
  std::vector<float> y(static_cast<size_t>(most * model.outputs));
  ThreadPool pool(threads);
  Gemm gemm(pool, isa);

  const auto gb_per_s = [&](double time) { return static_cast<double>(model.bytes) / time / 1e9; };
  const Times read = read_times(model, pool, repeats);
  std::printf("{\"isa\": \"%s\", \"threads\": %d, \"bytes\": %zu, ", isa_name(isa), threads,
              model.bytes);
  std::printf("\"read_gb_per_s\": %.1f, \"best_read_gb_per_s\": %.1f, \"rows\": {",
              gb_per_s(read.median), gb_per_s(read.best));
  for (size_t i = 0; i < row_counts.size(); ++i) {
    const Times times =
        times_of(repeats, [&] { run_once(model, gemm, x.data(), y.data(), row_counts[i]); });
    std::printf("%s\"%d\": {\"ms\": %.3f, \"best_ms\": %.3f}", i == 0 ? "" : ", ",
                static_cast<int>(row_counts[i]), 1e3 * times.median, 1e3 * times.best);
    std::fflush(stdout);
  }
  std::printf("}}\n");
  return 0;
}
