#define OUTRIDER_LOSS_TABLE loss_kernels_portable
#include "loss_kernels.inc.h"
