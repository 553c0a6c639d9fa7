// What the emulation keeps of a launch, of its block, and of its threads. No `#pragma once`: an object that texts are
// linked with has each of these declared, and then defined.
TSM2_HOST_OWN uint3 threadIdx, blockIdx;
TSM2_HOST_OWN dim3 blockDim, gridDim;

namespace tsm2_host {

TSM2_HOST_OWN Thread threads[most_threads];
TSM2_HOST_OWN unsigned running;  // the thread whose fiber runs
TSM2_HOST_OWN bool in_kernel;
TSM2_HOST_OWN unsigned block_time, warp_time[most_threads / warp_threads];  // barriers and __syncwarp that were passed
TSM2_HOST_OWN Launch *launch;

}  // namespace tsm2_host
