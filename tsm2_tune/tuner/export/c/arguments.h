/* The arguments of a call. */

#ifndef TSM2_ARGUMENTS_H
#define TSM2_ARGUMENTS_H

#include "handle.h"

/* As BLAS has it: operations, extents, leading dimensions, by their numbers among the arguments of a product. */
tsm2_status check_shapes(tsm2_handle handle, const struct call *call);

/* Factors and matrices of a product that has elements: none is NULL, each is aligned to an element. */
tsm2_status check_addresses(tsm2_handle handle, const struct call *call);

#endif
