#include "gemm_kernels.h"
#include "gemm_lanes_portable.h"

#define LANES_TABLE kGemmKernelsPortable
#include "gemm_kernels.inc.h"
