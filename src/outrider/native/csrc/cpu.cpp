#include "cpu.h"

#include <stdexcept>

#include "gemm_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace outrider {

namespace {

#if defined(__x86_64__)
bool has_avxvnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
}
#endif

bool machine_runs(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return true;
#if defined(__x86_64__)
    // __builtin_cpu_supports also asks whether the operating system saves the registers.
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::avxvnni:
      return machine_runs(Isa::avx2) && has_avxvnni();
    case Isa::avx512vnni:
      return machine_runs(Isa::avx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__) && defined(__APPLE__)
    case Isa::neon_dot:
      return true;
#elif defined(__aarch64__) && defined(__linux__)
    case Isa::neon_dot:
      return (getauxval(AT_HWCAP) & (1ul << 20)) != 0;  // HWCAP_ASIMDDP
#endif
    default:
      return false;
  }
}

constexpr Isa kBestFirst[] = {Isa::avx512vnni, Isa::avxvnni, Isa::avx2, Isa::neon_dot,
                              Isa::portable};

}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kBestFirst) {
    if (gemm_kernels(isa) != nullptr && machine_runs(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa detect_isa() {
  return available_isas().front();
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::neon_dot:
      return "neon_dot";
    case Isa::avx2:
      return "avx2";
    case Isa::avxvnni:
      return "avxvnni";
    case Isa::avx512vnni:
      return "avx512vnni";
    case Isa::portable:
      break;
  }
  return "portable";
}

Isa isa_from_name(const std::string& name) {
  const std::vector<Isa> isas = available_isas();
  if (name == "auto") return isas.front();
  std::string known = "auto";
  for (const Isa isa : isas) {
    if (name == isa_name(isa)) return isa;
    known += std::string(", ") + isa_name(isa);
  }
  throw std::invalid_argument("instruction set '" + name +
                              "' is unknown or cannot run here; choose one of " + known);
}

}  // namespace outrider
