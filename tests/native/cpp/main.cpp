// Runs all tests of the compute core, or those whose name contains the first argument.
// `--dequantize TYPE OUT IN FILE` reads a matrix in GGUF's layout from FILE and writes its float32
// numbers to standard output, for comparison with another implementation.
#include <cstdlib>
#include <string>

#include "check.h"
#include "pack.h"

namespace {

int dequantize(char** arguments) {
  const outrider::WeightType type = outrider::weight_type_from_name(arguments[0]);
  const int64_t out_features = std::atoll(arguments[1]);
  const int64_t in_features = std::atoll(arguments[2]);
  std::vector<uint8_t> bytes(outrider::file_bytes(type, out_features, in_features));
  std::FILE* file = std::fopen(arguments[3], "rb");
  const bool complete =
      file != nullptr && std::fread(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (file != nullptr) std::fclose(file);
  if (!complete) {
    std::fprintf(stderr, "%s does not hold %zu bytes\n", arguments[3], bytes.size());
    return 2;
  }
  const auto matrix = outrider::pack(type, bytes.data(), out_features, in_features);
  std::vector<float> row(static_cast<size_t>(in_features));
  for (int64_t i = 0; i < out_features; ++i) {
    outrider::dequantize_row(matrix, i, row.data());
    std::fwrite(row.data(), sizeof(float), row.size(), stdout);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  using namespace outrider_test;
  if (count == 6 && std::string(arguments[1]) == "--dequantize") return dequantize(arguments + 2);
  const std::string wanted = count > 1 ? arguments[1] : "";
  int run = 0;
  for (const auto& tests :
       {thread_tests(), buffer_tests(), pack_tests(), gemm_tests(), draft_tests()}) {
    for (const Test& test : tests) {
      if (std::string(test.name).find(wanted) == std::string::npos) continue;
      const int before = failures();
      test.run();
      std::printf("%s %s\n", failures() == before ? "ok    " : "FAILED", test.name);
      ++run;
    }
  }
  std::printf("%d tests, %d failed checks\n", run, failures());
  return failures() == 0 && run > 0 ? 0 : 1;
}
