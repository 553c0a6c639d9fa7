/* Checks of a call's arguments. */

#ifndef TSM2_ARGUMENTS_H
#define TSM2_ARGUMENTS_H

#include "handle.h"

/* Check operations, extents and leading dimensions as BLAS does. Errors have the argument's position. */
tsm2_status check_shapes(tsm2_handle handle, const struct call *call);

/* Check that no factor or matrix is NULL, and that each is aligned to an element. The product has elements. */
tsm2_status check_addresses(tsm2_handle handle, const struct call *call);

#endif
