#define OUTRIDER_TABLE row_kernels_portable
#define OUTRIDER_TABLE_NAME "portable"
#define OUTRIDER_GROUPS 1
#include "row_kernels.inc.h"
