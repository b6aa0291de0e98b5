#define OUTRIDER_BLOCK_TABLE block_kernels_avx2
#include "block_kernels.inc.h"
