#include "gemm_kernels.h"
#include "gemm_lanes_avx2.h"

#define LANES_TABLE kGemmKernelsAvxVnni
#include "gemm_kernels.inc.h"
