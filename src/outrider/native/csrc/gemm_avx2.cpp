#include "gemm_kernels.h"
#include "gemm_lanes_avx2.h"

#define LANES_TABLE kGemmKernelsAvx2
#include "gemm_kernels.inc.h"
