#define OUTRIDER_TABLE row_kernels_avx2
#define OUTRIDER_TABLE_NAME "avx2"
#define OUTRIDER_GROUPS 1
#include "row_kernels.inc.h"
