#define OUTRIDER_BLOCK_TABLE block_kernels_portable
#include "block_kernels.inc.h"
