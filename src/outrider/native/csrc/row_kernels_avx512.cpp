#define OUTRIDER_TABLE row_kernels_avx512
#define OUTRIDER_TABLE_NAME "avx512"
#define OUTRIDER_GROUPS 4
#include "row_kernels.inc.h"
