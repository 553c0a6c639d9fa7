"""Occupancy equals CUDA's own calculation."""

from dataclasses import replace

import pytest

from tsm2_tune.generator.device.cards import profile_named
from tsm2_tune.generator.device.occupancy import occupancy

# Card -> threads a block, registers a thread, shared bytes a block: blocks a multiprocessor and what limits them.
# Answers of cudaOccMaxActiveBlocksPerMultiprocessor in cuda_occupancy.h of CUDA 13.0, opted in to the shared memory
# asked for. The same program agreed on 1140000 random kernels of compute capabilities 3.0 to 12.0.
ANSWERS = {
    "k40c": """128 32 0: 16 warps + blocks + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 1 shared memory, 288 127 4096: 1 registers""",
    "m40": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 2 shared memory, 288 127 4096: 1 registers""",
    "p100": """128 32 0: 16 warps + registers, 256 37 0: 6 registers, 96 65 1000: 9 registers,
        1024 64 0: 1 registers, 1024 65 0: 0 registers, 33 255 0: 4 registers,
        256 64 49152: 1 shared memory, 640 96 16384: 1 registers, 288 127 4096: 1 registers,
        992 65 0: 0 registers, 544 104 0: 0 registers, 736 80 0: 1 registers""",
    "v100": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 2 shared memory, 288 127 4096: 1 registers, 128 32 98304: 1 shared memory,
        128 32 98305: 0 shared memory, 512 40 24577: 3 registers + shared memory""",
    "a100": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 3 shared memory, 288 127 4096: 1 registers, 128 32 166912: 1 shared memory,
        128 32 166913: 0 shared memory, 192 56 12289: 6 registers""",
    "h100": """128 32 0: 16 warps + registers, 96 65 1000: 9 registers, 1024 65 0: 0 registers,
        256 64 49152: 4 registers + shared memory, 288 127 4096: 1 registers""",
    "h200": """128 32 0: 16 warps + registers, 256 37 0: 6 registers, 96 65 1000: 9 registers,
        1024 64 0: 1 registers, 1024 65 0: 0 registers, 33 255 0: 4 registers,
        256 64 49152: 4 registers + shared memory, 640 96 16384: 1 registers, 288 127 4096: 1 registers,
        128 110 16384: 4 registers, 32 16 0: 32 blocks, 64 24 6144: 32 warps + blocks + shared memory,
        128 40 232448: 1 shared memory, 128 40 232449: 0 shared memory, 256 72 115712: 2 shared memory,
        256 72 115713: 1 shared memory, 1 1 0: 32 blocks, 384 168 232448: 1 registers + shared memory""",
    # That header knows no Fermi. By the rules of its ancestor in CUDA 7.0: two halves of 16384 registers; a warp
    # takes a multiple of 64 registers, or of 128 where a thread has 21, 22, 29, 30, 37, 38, 45 or 46: with 20 there
    # are 640 a warp and 25 warps in a half, with 21 768 and 21, where 704 would let 8 blocks in.
    "s2050": """256 20 0: 6 warps + registers, 192 21 0: 7 registers, 256 32 0: 4 registers,
        256 63 0: 2 registers, 256 64 0: 0 registers, 64 16 0: 8 blocks,
        128 16 6000: 8 blocks + shared memory, 128 16 49152: 1 shared memory,
        128 16 49153: 0 shared memory, 1024 33 0: 0 registers""",
}


@pytest.mark.parametrize("name", ANSWERS)
def test_blocks_and_their_limits_are_cudas(name: str) -> None:
    for answer in ANSWERS[name].split(","):
        asked, said = answer.split(": ")
        threads, registers, smem_bytes = map(int, asked.split())
        found = occupancy(profile_named(name), threads=threads, registers=registers, smem_bytes=smem_bytes)
        assert f"{found.blocks_per_sm} {' + '.join(found.limited_by)}" == said, answer


def test_residents_follow_from_the_blocks() -> None:
    found = occupancy(profile_named("h200"), threads=100, registers=32, smem_bytes=0)
    assert found.blocks_per_sm == 16
    assert found.warps_per_sm == 64  # the last warp of a block is not full
    assert found.threads_per_sm == 1600


def test_the_limit_of_a_thread_is_reported() -> None:
    kernel = {"threads": 32, "registers": 8, "smem_bytes": 0}
    assert occupancy(profile_named("s2050"), **kernel).registers_per_thread_limit == 63
    assert occupancy(profile_named("k40c"), **kernel).registers_per_thread_limit == 255


def test_nothing_fits_beyond_a_limit_of_the_block_or_the_thread() -> None:
    h200 = profile_named("h200")
    assert occupancy(h200, threads=1025, registers=16, smem_bytes=0).limited_by == ("warps",)
    assert occupancy(h200, threads=32, registers=256, smem_bytes=0).limited_by == ("registers",)
    assert occupancy(h200, threads=32, registers=16, smem_bytes=232449).limited_by == ("shared memory",)
    assert occupancy(h200, threads=1025, registers=16, smem_bytes=0).threads_per_sm == 0


def test_the_reserve_of_a_block_counts_and_is_rounded_with_it() -> None:
    h200 = profile_named("h200")
    seven = 233472 // 7 // 128 * 128 - 1024
    assert occupancy(h200, threads=32, registers=16, smem_bytes=seven).blocks_per_sm == 7
    assert occupancy(h200, threads=32, registers=16, smem_bytes=seven + 1).blocks_per_sm == 6


def test_on_the_host_nothing_is_rounded() -> None:
    host = replace(profile_named("h200"), name="host", compute_capability=(0, 0), smem_bytes_reserved_per_block=0)
    found = occupancy(host, threads=1024, registers=63, smem_bytes=0)
    assert (found.blocks_per_sm, found.limited_by) == (1, ("registers",))
    assert occupancy(host, threads=32, registers=1, smem_bytes=233472 // 31).blocks_per_sm == 31


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"registers": -1}, {"smem_bytes": -1}])
def test_what_is_no_kernel_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="no kernel has"):
        occupancy(profile_named("h200"), **{"threads": 32, "registers": 16, "smem_bytes": 0} | wrong)
