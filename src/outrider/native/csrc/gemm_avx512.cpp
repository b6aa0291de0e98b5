// GCC 12 takes the deliberately undefined registers inside its own intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include "gemm_kernels.h"
#include "gemm_lanes_avx512.h"

#define LANES_TABLE kGemmKernelsAvx512
#include "gemm_kernels.inc.h"
