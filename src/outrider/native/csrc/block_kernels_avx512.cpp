#define OUTRIDER_BLOCK_TABLE block_kernels_avx512
#include "block_kernels.inc.h"
