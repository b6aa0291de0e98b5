#define OUTRIDER_TABLE row_kernels_avx2
#define OUTRIDER_TABLE_NAME "avx2"
#define OUTRIDER_SAMPLE_TABLE sample_kernels_avx2
#include "row_kernels.inc.h"
#include "sample_kernels.inc.h"
