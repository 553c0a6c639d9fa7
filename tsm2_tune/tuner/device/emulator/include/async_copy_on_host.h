// The emulator's kernels/async_copy.cuh. A copy takes place when its thread waits for it, so that a kernel which waits for
// too few groups reads stale data.
#pragma once

#include "block.h"

#pragma GCC visibility push(hidden)
namespace tsm2_host {

TSM2_HOST_OWN void start_copy(void *to, const void *from, unsigned bytes, unsigned given);
TSM2_HOST_OWN void commit_copies();

// Wait until at most `pending` of the committed groups are in flight.
TSM2_HOST_OWN void wait_for_copies(unsigned pending);
TSM2_HOST_OWN void wait_for_all_copies();

}  // namespace tsm2_host
#pragma GCC visibility pop

// The functions that kernels call.
enum class CacheOp { ca, ca_L2_128B, cg_L2_128B };

template <int bytes, CacheOp op = CacheOp::ca> inline void cp_async(void *to, const void *from)
{
    tsm2_host::start_copy(to, from, bytes, bytes);
}
template <int bytes, CacheOp op = CacheOp::ca, class T> inline void cp_async_zfill(void *to, const T *from, int given)
{
    tsm2_host::start_copy(to, from, bytes, given * sizeof(T));
}
template <CacheOp op> inline void cp_async_if(void *to, const void *from, bool wanted, bool given)
{
    if (wanted)
        tsm2_host::start_copy(to, from, 16, given ? 16 : 0);
}
inline void cp_async_fence() { tsm2_host::commit_copies(); }
template <int pending_groups> inline void cp_async_wait() { tsm2_host::wait_for_copies(pending_groups); }
inline void cp_async_wait_all() { tsm2_host::wait_for_all_copies(); }
