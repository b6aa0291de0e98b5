#define OUTRIDER_LOSS_TABLE loss_kernels_avx2
#include "loss_kernels.inc.h"
