// Asynchronous copies to shared memory: none is done before the thread that began it awaits it, so that a text that
// awaits too few of them reads what was there before.
#pragma once

#include "block.h"

#pragma GCC visibility push(hidden)
namespace tsm2_host {

TSM2_HOST_OWN void copy_later(void *to, const void *from, unsigned bytes, unsigned given);
TSM2_HOST_OWN void close_copies();

// Until at most `left` of the closed groups are on their way.
TSM2_HOST_OWN void await_copies(unsigned left);
TSM2_HOST_OWN void await_all_copies();

}  // namespace tsm2_host
#pragma GCC visibility pop

// What kernels call, as kernels/async_copy.cuh has it for a GPU.
enum class CacheOp { ca, ca_L2_128B, cg_L2_128B };

template <int bytes, CacheOp op = CacheOp::ca> inline void cp_async(void *to, const void *from)
{
    tsm2_host::copy_later(to, from, bytes, bytes);
}
template <int bytes, CacheOp op = CacheOp::ca, class T> inline void cp_async_zfill(void *to, const T *from, int given)
{
    tsm2_host::copy_later(to, from, bytes, given * sizeof(T));
}
template <CacheOp op> inline void cp_async_if(void *to, const void *from, bool wanted, bool given)
{
    if (wanted)
        tsm2_host::copy_later(to, from, 16, given ? 16 : 0);
}
inline void cp_async_fence() { tsm2_host::close_copies(); }
template <int groups_left> inline void cp_async_wait() { tsm2_host::await_copies(groups_left); }
inline void cp_async_wait_all() { tsm2_host::await_all_copies(); }
