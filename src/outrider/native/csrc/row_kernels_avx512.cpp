#define OUTRIDER_TABLE row_kernels_avx512
#define OUTRIDER_TABLE_NAME "avx512"
#define OUTRIDER_SAMPLE_TABLE sample_kernels_avx512
#include "row_kernels.inc.h"
#include "sample_kernels.inc.h"
