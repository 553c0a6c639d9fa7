#pragma once
// Stream-K: the blocks of a persistent kernel share the k tiles of all tiles of C. Each block gets the same number of
// k tiles, up to rounding, and whole tiles of C as far as possible. Below, a tile is a tile of C.
//
//   Panel: a split-k slice whose length is a block's equal share of all k tiles. If there are fewer tiles than
//     blocks, the k of every tile begins with `panels` panels: as many as leave a tail of at least `least_tail` k
//     tiles, or no tail. If k is short, there may be no panel. One block computes one panel of one tile.
//   Tail: the k tiles of a tile after its panels (all of them if there are no panels). Blocks without a panel, the
//     tail blocks, compute all tails, first in turns and then in stretches.
//   Turn: each tail block computes the whole tail of one tile. There are floor(tiles / tail blocks) turns.
//   Stretch: the tails of the remaining tiles are concatenated and cut into equal stretches, one for each tail block.
//   Span: the k tiles of a tile that a block can have: its panel, or the tail.
//   Item: the k tiles of one tile that a block computes. The block runs the epilogue after each item.
//
// Example: 7 tiles of 10 k tiles, 5 blocks: no panel, 1 turn, stretches of 4 k tiles. k tiles [a, b) of a tile are
//   block 0's: of tile 0 [0, 10), of tile 5 [0, 4)     block 3's: of tile 3 [0, 10), of tile 6 [2, 6)
//   block 1's: of tile 1 [0, 10), of tile 5 [4, 8)     block 4's: of tile 4 [0, 10), of tile 6 [6, 10)
//   block 2's: of tile 2 [0, 10), of tile 5 [8, 10), of tile 6 [0, 2)
// Example: 3 tiles of 90 k tiles, 5 blocks: a panel of 54 k tiles, a tail of 36; 1 turn, stretches of 18 k tiles.
//   block 0's: of tile 0 [0, 54)                       block 3's: of tile 0 [54, 90), of tile 2 [54, 72)
//   block 1's: of tile 1 [0, 54)                       block 4's: of tile 1 [54, 90), of tile 2 [72, 90)
//   block 2's: of tile 2 [0, 54)
//
// So neighbouring blocks mostly read neighbouring rows of A and the same rows of B at the same time. Two exceptions:
//   If there are slightly fewer tiles than blocks and k is short, each tile belongs to one block and the other blocks
//     are idle. A block's part of k may exceed its equal share by at most `max_over` elements.
//   If C is a single tile, block b computes k tiles b, b + splits, ...
template <class Index, int block_m, int block_n, int block_k, int max_over>
struct StreamK {
    struct Corner {  // first row and column of a tile
        Index row, column;
    };
    struct Origin {  // of a k tile: the corner of its tile of C, and its first index along k
        Corner corner;
        Index product;
    };

    Index panels, tail_k_tiles;         // panels of a tile; k tiles of its tail
    Index tail_blocks, turn_tiles;      // blocks without a panel; tiles whose tails are computed in turns
    Index stretch_k_tiles;              // k tiles of every stretch but the last
    Index rank;                         // of this block among those of its panel, or among the tail blocks
    Index span_begin, span_k_tiles;     // of this block's span: its first k tile, and how many it has
    Index turns;                        // how many this block takes part in
    Index stretch_tile, stretch_begin;  // where this block's stretch or panel begins: tile, and k tile in the span
    Index own_k_tiles;                  // k tiles of this block, in all its items
    Index tiles_down, tiles;            // tiles in a column of C; tiles in C
    Index tiles_down_band;              // tiles in a column of a band (see corner_of)
    Index tiles_of_band;                // tiles in every band but the last
    Index k_tiles;                      // of a tile

    // Return the tile of this block's item number `item`. Its turns come first, then the tiles of its stretch.
    __device__ __forceinline__ Index tile_of(Index item) const
    {
        return item < turns ? item * tail_blocks + rank : stretch_tile + item - turns;
    }
    // Return the corner of a tile. Bands are groups of rows of tiles. Tiles are numbered band after band, in a band
    // column after column. The tiles of a turn are about a square of C, so the L2 holds what its blocks read of A and
    // B.
    __device__ __forceinline__ Corner corner_of(Index tile) const
    {
        if (tiles == tiles_down)
            return {tile * block_m, 0};
        const Index band = tile / tiles_of_band, in_band = tile - band * tiles_of_band;
        const Index above = band * tiles_down_band, below = tiles_down - above;
        const Index down = below < tiles_down_band ? below : tiles_down_band, across = in_band / down;
        return {(above + in_band - across * down) * block_m, across * block_n};
    }

    __device__ __forceinline__ static StreamK of_block(Index block, int splits, Index m, Index n, Index k)
    {
        StreamK work = {};
        work.tiles_down = (m + block_m - 1) / block_m;
        const Index tiles_across = (n + block_n - 1) / block_n;
        const Index tiles = work.tiles = work.tiles_down * tiles_across;
        if (tiles_across > 1) {
            work.tiles_down_band = Index(sqrtf(splits * (float(block_n) / block_m)) + 0.5f);
            work.tiles_down_band = work.tiles_down_band > 0 ? work.tiles_down_band : 1;
            work.tiles_of_band = tiles_across * work.tiles_down_band;
        }
        const Index k_tiles = work.k_tiles = (k + block_k - 1) / block_k;
        if (block >= splits)
            return work;
        if (tiles == 1) {
            work.tail_k_tiles = work.span_k_tiles = k_tiles;
            work.tail_blocks = splits;
            work.rank = work.stretch_begin = block;
            work.own_k_tiles = block < k_tiles ? (k_tiles - block + splits - 1) / splits : 0;
            return work;
        }
        constexpr int least_tail = 32;  // k tiles: an epilogue takes little time compared with so many
        Index share = Index((tiles * (long long)k_tiles + splits - 1) / splits);  // k tiles of a block, if equal
        if (tiles < splits && tiles >= splits - splits / 8 && (k_tiles - share) * block_k <= max_over)
            share = k_tiles;
        if (tiles < splits)
            work.panels = (k_tiles % share == 0 ? k_tiles : k_tiles > least_tail ? k_tiles - least_tail : 0) / share;
        work.tail_k_tiles = k_tiles - work.panels * share;
        const Index panel_blocks = work.panels * tiles;
        work.tail_blocks = splits - panel_blocks;
        const Index turns = work.tail_blocks == 0 ? 0 : tiles / work.tail_blocks;
        work.turn_tiles = turns * work.tail_blocks;
        const long long in_stretches = (tiles - work.turn_tiles) * (long long)work.tail_k_tiles;
        work.stretch_k_tiles =
            work.tail_blocks == 0 ? 0 : Index((in_stretches + work.tail_blocks - 1) / work.tail_blocks);
        if (block < panel_blocks) {
            work.rank = work.stretch_tile = block % tiles;
            work.span_begin = block / tiles * share;
            work.own_k_tiles = work.span_k_tiles = share;
        } else if (work.tail_k_tiles > 0) {
            work.rank = block - panel_blocks;
            work.span_begin = work.panels * share;
            work.span_k_tiles = work.tail_k_tiles;
            work.turns = turns;
            const long long before = work.rank * (long long)work.stretch_k_tiles, remaining = in_stretches - before;
            work.stretch_tile = work.turn_tiles + Index(before / work.tail_k_tiles);
            work.stretch_begin = Index(before % work.tail_k_tiles);
            work.own_k_tiles = turns * work.tail_k_tiles
                + (remaining <= 0 ? 0 : remaining < work.stretch_k_tiles ? Index(remaining) : work.stretch_k_tiles);
        }
        return work;
    }
};
