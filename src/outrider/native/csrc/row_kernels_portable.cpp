#define OUTRIDER_TABLE row_kernels_portable
#define OUTRIDER_TABLE_NAME "portable"
#define OUTRIDER_SAMPLE_TABLE sample_kernels_portable
#include "row_kernels.inc.h"
#include "sample_kernels.inc.h"
