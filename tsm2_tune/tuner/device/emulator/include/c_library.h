// The C library's functions, without what the C++ library puts around them: each kernel would parse its templates.
// Functions of floats have names of their own here, such as fabsf.
#pragma once

#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // to libstdc++: C's own math.h and stdlib.h
#include <math.h>
#include <stdlib.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
