#include "gemm_kernels.h"

namespace outrider {

extern const GemmKernels kGemmKernelsPortable;
#if defined(__x86_64__)
extern const GemmKernels kGemmKernelsAvx2;
extern const GemmKernels kGemmKernelsAvxVnni;
extern const GemmKernels kGemmKernelsAvx512;
#elif defined(__aarch64__)
extern const GemmKernels kGemmKernelsNeon;
#endif

const GemmKernels* gemm_kernels(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return &kGemmKernelsPortable;
#if defined(__x86_64__)
    case Isa::avx2:
      return &kGemmKernelsAvx2;
    case Isa::avxvnni:
      return &kGemmKernelsAvxVnni;
    case Isa::avx512vnni:
      return &kGemmKernelsAvx512;
#elif defined(__aarch64__)
    case Isa::neon_dot:
      return &kGemmKernelsNeon;
#endif
    default:
      return nullptr;
  }
}

}  // namespace outrider
