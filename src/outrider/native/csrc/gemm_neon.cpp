#include "gemm_kernels.h"
#include "gemm_lanes_neon.h"

#define LANES_TABLE kGemmKernelsNeon
#include "gemm_kernels.inc.h"
