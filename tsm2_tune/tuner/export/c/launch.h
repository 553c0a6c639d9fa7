/* The grid and the workspace of a launch for a shape: runtime/choice/launch.py in C. */

#ifndef TSM2_LAUNCH_H
#define TSM2_LAUNCH_H

#include <stdint.h>

#include "pack.h"

enum { GROUP_SPLITS = 16 };

static inline uint64_t quotient_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

static inline uint64_t launch_columns(const struct launch *launch, uint64_t n)
{
    return launch->columns_per_block ? (uint64_t)launch->columns_per_block : n;
}

/* Tiles of an m x n C. */
static inline uint64_t launch_tiles(const struct launch *launch, uint64_t m, uint64_t n)
{
    return quotient_up(m, (uint64_t)launch->rows_per_block) * quotient_up(n, launch_columns(launch, n));
}

/* Blocks of the grid in x and in y. */
static inline uint64_t launch_blocks_x(const struct launch *launch, uint64_t m, uint64_t n)
{
    return launch->persistent ? (uint64_t)launch->splits : launch_tiles(launch, m, n);
}

static inline uint64_t launch_blocks_y(const struct launch *launch)
{
    return launch->persistent ? 1 : (uint64_t)launch->splits;
}

/* The number of groups of splits that are summed first; 0 with few splits. */
static inline uint64_t launch_groups(const struct launch *launch)
{
    return launch->splits > launch->flat_splits ? quotient_up((uint64_t)launch->splits, GROUP_SPLITS) : 0;
}

/* Elements of partial sums; 0 without a workspace. */
static inline uint64_t launch_partial_elements(const struct launch *launch, uint64_t m, uint64_t n)
{
    const uint64_t splits = (uint64_t)launch->splits, tiles = launch_tiles(launch, m, n);
    const uint64_t least = tiles < splits ? tiles : splits;
    const uint64_t sums = launch->persistent ? splits + least : (splits + launch_groups(launch)) * tiles;
    return !launch->has_workspace ? 0 : sums * (uint64_t)launch->rows_per_block * launch_columns(launch, n);
}

/* The number of 32-bit counters, which are 0 before and after a launch; 0 without a workspace. */
static inline uint64_t launch_counters(const struct launch *launch, uint64_t m, uint64_t n)
{
    const uint64_t splits = (uint64_t)launch->splits;
    if (!launch->has_workspace)
        return 0;
    return launch->persistent ? 2 * splits : launch_tiles(launch, m, n) * (1 + launch_groups(launch));
}

#endif
