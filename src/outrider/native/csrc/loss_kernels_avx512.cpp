#define OUTRIDER_LOSS_TABLE loss_kernels_avx512
#include "loss_kernels.inc.h"
