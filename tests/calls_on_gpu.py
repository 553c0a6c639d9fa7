"""Check an exported module's calls with the arrays of one library: at the same time, again and again, in graphs, on
two GPUs.

    python -m tests.calls_on_gpu torch stress
    compute-sanitizer python -m tests.calls_on_gpu cupy stress --products 64 --threads 2 --streams 2 --shrink 16

The module has real kernels, and is made for the GPU that is here. Each check is a process of its own: one is about
the first call of a module. With numpy the kernels are emulated on the host, for finding faults in the checks.
"""

from __future__ import annotations

import faulthandler
import inspect
import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import numpy as np
import pytest

from tests.array_libraries import LIBRARIES, Arrays, Matrix
from tests.calls import Call, Ops, operands, parts, random_call, result, similar_call, whole_of
from tests.cases import module_of_list
from tests.fabricated import tuning_run
from tests.tensors_on_gpu import bits, gradients
from tests.threads_on_gpu import PATIENCE_SECONDS, in_threads
from tsm2_tune.commands.errors import Command

# Element type, storage orders of a, b and out, shape. With `shrink` the long extents are shorter.
SHAPES = (
    ("f32", "FFF", (2048, 8, 2048)),
    ("f32", "FFF", (2000, 5, 3001)),
    ("f32", "FFF", (100_000, 8, 8)),
    ("f32", "CCC", (1501, 7, 2048)),
    ("f32", "CFF", (16, 16, 100_000)),
    ("f64", "CFF", (15, 13, 50_001)),
    ("c64", "FFF", (1000, 4, 1500)),
)
DRAWN: Ops = {"f32": ("NN", "TN"), "f64": ("TN",), "c64": ("NN", "CN")}  # as the kernels' matrices lie
LONG = 500  # from here on an extent is a long one


def made_module(arrays: Arrays, folder: Path, *, launcher: bool = False) -> ModuleType:
    """Export kernels for this GPU, or for the host, and import the module.

    On a GPU it has binaries; with `launcher` it has the compiled launcher.
    """
    name, capability, sms = arrays.device()
    run, binaries = tuning_run(name, compute_capability=capability, sms=sms), bool(capability)
    return module_of_list("called on a GPU", run, folder, binaries=binaries, launcher=launcher)


@dataclass(frozen=True)
class Case:
    """A product, its first result, and that of float64 with the bound of its error."""

    a: Any
    b: Any
    out: Any
    exact: Matrix
    bound: Matrix


def cases(arrays: Arrays, best: ModuleType, shrink: int) -> list[Case]:
    """Return the cases of SHAPES. Their `out` holds NaN."""
    random = np.random.default_rng(5)
    found = []
    for dtype, orders, shape in SHAPES:
        m, n, k = (-(-extent // shrink) if extent >= LONG else extent for extent in shape)
        a, b, out = (
            np.asarray(_numbers(random, rows, columns, best.DTYPES[dtype]), order="F" if order == "F" else "C")
            for order, (rows, columns) in zip(orders, ((m, k), (k, n), (m, n)), strict=True)
        )
        wide = [x.astype(np.result_type(x, np.float64)) for x in (a, b)]
        bound = (k + 4) * np.finfo(a.dtype).eps * (np.abs(wide[0]) @ np.abs(wide[1]))
        out[...] = np.nan
        found.append(Case(arrays.put(a), arrays.put(b), arrays.put(out), wide[0] @ wide[1], bound))
    return found


def _numbers(random: np.random.Generator, rows: int, columns: int, dtype: Any) -> Any:
    """About 0, so that other orders of a sum have other bits."""
    parts = random.random((2, rows, columns)) - 0.5
    return (parts[0] + 1j * parts[1] if np.dtype(dtype).kind == "c" else parts[0]).astype(dtype)


def started(arrays: Arrays, best: ModuleType, shrink: int) -> list[Case]:
    """The cases, each computed once and right; of some the sums of splits meet in a workspace."""
    found = cases(arrays, best, shrink)
    for case in found:
        check(arrays, best.gemm(case.a, case.b, out=case.out), case)
    has_workspace = {best.choice(one.a, one.b, one.out).launch.has_workspace for one in found}
    assert has_workspace == {False, True}
    return found


def check(arrays: Arrays, array: Any, case: Case) -> None:
    """AssertionError where it is not the product."""
    error = np.abs(arrays.get(array) - case.exact)
    assert (error <= case.bound).all(), f"{case.exact.shape}: error {np.nanmax(error)}"


def stress(
    arrays: Arrays, best: ModuleType, *, shrink: int = 1, products: int = 100_000, threads: int = 8, streams: int = 8
) -> None:
    """Products of all shapes on many streams by many threads: the bits of each are those of the first.

    The first of each thread's streams is the default one, which all share. PyTorch has 32 others in all, so that
    some are two threads'.
    """
    found = started(arrays, best, shrink)
    turns = -(-products // (threads * streams))

    def work(number: int) -> None:
        own = [arrays.default_stream(), *(arrays.stream() for _ in range(streams - 1))]
        outs = [[arrays.room_for(case.out) for case in found] for _ in own]
        wrong = [arrays.count() for _ in own]
        arrays.synchronize()
        for turn in range(turns):
            for at, stream in enumerate(own):
                which = (turn + at + number) % len(found)
                case, out = found[which], outs[at][which]
                with arrays.at(stream):
                    best.gemm(case.a, case.b, out=out)
                    wrong[at] += arrays.differs(out, case.out)
                    arrays.spoil(out)
        arrays.synchronize()
        assert not any(map(int, wrong)), f"{sum(map(int, wrong))} of {turns * streams} products are others"

    arrays.synchronize()
    in_threads([lambda number=number: work(number) for number in range(threads)])  # type: ignore[misc]
    print(f"{turns * threads * streams} products have the bits of the first")


def same_bits(arrays: Arrays, best: ModuleType, *, shrink: int = 1, repeats: int = 200) -> None:
    """A product that is computed again has the same bits: in `out`, in a new array, by a plan, in a CUDA graph."""
    found = started(arrays, best, shrink)
    wrong, outs = arrays.count(), [arrays.room_for(case.out) for case in found]
    pairs = list(zip(found, outs, strict=True))

    def all_of_them() -> None:
        for case, out in pairs:
            best.gemm(case.a, case.b, out=out)

    def compare() -> Any:
        different = sum(arrays.differs(out, case.out) for case, out in pairs)
        for out in outs:
            arrays.spoil(out)
        return different

    for _ in range(repeats):
        all_of_them()
        wrong += compare()
        for case in found:
            wrong += arrays.differs(best.gemm(case.a, case.b), case.out)
    assert int(wrong) == 0
    if not arrays.has_graphs:
        return
    plans = [best.plan(case.a, case.b, out) for case, out in pairs]
    stream = arrays.stream()
    arrays.synchronize()
    replay = arrays.captured(stream, all_of_them)
    with arrays.at(stream):
        for _ in range(repeats):
            replay()
            wrong += compare()
            for plan in plans:
                plan()
            wrong += compare()
        assert int(wrong) == 0


def first_call_captured(arrays: Arrays, best: ModuleType, *, shrink: int = 1, repeats: int = 3) -> None:
    """After `load` the first call of each shape may be captured; replayed beside others it is right."""
    best.load()
    found, stream = cases(arrays, best, shrink), arrays.stream()
    others = [arrays.room_for(case.out) for case in found]
    arrays.synchronize()
    assert not best.plans

    def all_of_them() -> None:
        for case in found:
            best.gemm(case.a, case.b, out=case.out)

    replay = arrays.captured(stream, all_of_them)
    arrays.synchronize()
    assert all(np.isnan(arrays.get(case.out)).all() for case in found)  # captured, not computed
    for _ in range(repeats):
        for case in found:
            arrays.spoil(case.out)
        arrays.synchronize()
        with arrays.at(stream):
            replay()
        for case, out in zip(found, others, strict=True):
            best.gemm(case.a, case.b, out=out)  # beside it, on another stream
        arrays.synchronize()
        for case, out in zip(found, others, strict=True):
            check(arrays, case.out, case)
            assert not int(arrays.differs(out, case.out))


def two_devices(arrays: Arrays, best: ModuleType, *, shrink: int = 1, repeats: int = 3) -> None:
    """Products run where their arrays are, whichever device is current, and leave that as it was."""
    if arrays.devices() < 2:
        raise SystemExit("this needs two GPUs")
    on = []
    for ordinal in (0, 1):
        with arrays.at_device(ordinal):
            on.append(cases(arrays, best, shrink))
            arrays.synchronize()
    for current, there in ((0, 1), (1, 0), (1, 1)):
        with arrays.at_device(current):
            for case in on[there]:
                for _ in range(repeats):
                    on_its_device(arrays, best, case, there)
                    assert arrays.current() == current
    with arrays.at_device(0):
        mixed_are_refused(arrays, best, *(of[0] for of in on))
        assert arrays.current() == 0
    by_vendor_on(arrays, best, repeats)
    in_threads([lambda there=there: on_both(arrays, best, on[there], there) for there in (0, 1)])  # type: ignore[misc]


def on_both(arrays: Arrays, best: ModuleType, found: list[Case], there: int) -> None:
    """All cases of this device by a thread that never made it current."""
    for case in found:
        on_its_device(arrays, best, case, there)


def on_its_device(arrays: Arrays, best: ModuleType, case: Case, there: int) -> None:
    """In `out`, in a new array, by a plan, and on a stream of the device."""
    before = arrays.current()
    ways: tuple[Callable[[], Any], ...] = (
        lambda: best.gemm(case.a, case.b, out=case.out),
        lambda: best.gemm(case.a, case.b),
        lambda: best.plan(case.a, case.b, case.out)(),
    )
    for way in ways:
        made = way()
        assert (arrays.device_of(made), arrays.current()) == (there, before)
        with arrays.at_device(there):
            arrays.synchronize()
            check(arrays, made, case)
            arrays.spoil(case.out)
            arrays.synchronize()
    with arrays.at_device(there):
        stream = arrays.stream()
    best.gemm(case.a, case.b, out=case.out, stream=stream)
    assert arrays.current() == before
    with arrays.at_device(there):
        arrays.synchronize()
        check(arrays, case.out, case)


def mixed_are_refused(arrays: Arrays, best: ModuleType, here: Case, there: Case) -> None:
    """Arrays of two devices, also of a shape that has run on each."""
    for a, b, out in ((here.a, there.b, here.out), (here.a, here.b, there.out), (there.a, there.b, here.out)):
        with pytest.raises(ValueError, match=r"^(b|out) and a are in different CUDA contexts"):
            best.gemm(a, b, out=out)
    with pytest.raises(ValueError, match=r"^b and a are in different CUDA contexts"):
        best.gemm(here.a, there.b)


def by_vendor_on(arrays: Arrays, best: ModuleType, repeats: int) -> None:
    """Check that a product for which there is no kernel is computed on the arrays' device too."""
    numbers = np.random.default_rng(7).random((2, 33, 33))
    with arrays.at_device(1):
        a, b, out = (arrays.put(x) for x in (*numbers, np.zeros((33, 33))))
        arrays.synchronize()
    with arrays.at_device(0):
        assert isinstance(best.choice(a, b, out), best.Vendor)
        ways: tuple[Callable[[], Any], ...] = (lambda: best.gemm(a, b), lambda: best.gemm(a, b, out=out))
        for _ in range(repeats):
            for way in ways:
                made = way()
                assert (arrays.device_of(made), arrays.current()) == (1, 0)
                with arrays.at_device(1):
                    arrays.synchronize()
                    np.testing.assert_allclose(arrays.get(made), numbers[0] @ numbers[1])
                    arrays.spoil(out)
                    arrays.synchronize()


def own_memory(arrays: Arrays, best: ModuleType, *, shrink: int = 1) -> None:
    """Results and workspaces are of the library's allocator."""
    kept: list[object] = []  # streams, too: one that is gone gives its workspace to another of the same handle
    for case in started(arrays, best, shrink):
        stream, before = arrays.stream(), arrays.used_bytes()
        made = best.gemm(case.a, case.b)
        kept += stream, made
        assert type(made) is type(case.a)
        assert arrays.used_bytes() - before >= made.nbytes
        found, (m, n), before = best.choice(case.a, case.b, made), made.shape, arrays.used_bytes()
        elements = found.launch.partial_elements(*((n, m) if found.is_transposed else (m, n)))
        arrays.synchronize()
        with arrays.at(stream):
            best.gemm(case.a, case.b, out=made)
        needed = elements * made.nbytes // (m * n)
        assert arrays.used_bytes() - before >= needed, f"{found.launch} needs {needed} bytes"
        arrays.synchronize()
        check(arrays, made, case)


def drawn(arrays: Arrays, best: ModuleType, *, shrink: int = 1, repeats: int = 500) -> None:
    """Calls that tests on a fake GPU and on the host draw too: results are exact, and no other memory is written."""
    rng, call = random.Random(5), Call("f32", "NN", 6, 2, 3)
    extents, stream = tuple(-(-extent // shrink) for extent in (1, 2, 8, 33, 500)), arrays.stream()
    for turn in range(repeats):
        new = turn % 5 == 0
        call = random_call(rng, DRAWN, extents) if new else similar_call(rng, call, DRAWN)
        plain = replace(call, stream=None, is_vector=False)
        whole = operands(plain, turn)
        conj_a, conj_b = plain.conjugates
        wholes = [arrays.put(whole_of(one)) for one in whole]
        a, b, out = parts(plain, wholes)
        named = {"alpha": plain.alpha, "beta": plain.beta, "conj_a": conj_a, "conj_b": conj_b}
        arrays.synchronize()
        with arrays.at(stream):
            made = best.gemm(a, b, out=out if plain.has_out else None, fallback="error", **named)
        arrays.synchronize()
        expected = result(plain, *whole)
        np.testing.assert_array_equal(arrays.get(made), expected, err_msg=str(plain))
        if plain.has_out:
            whole[2][...] = expected
        for one, array in zip(whole, wholes, strict=True):
            np.testing.assert_array_equal(arrays.get(array), whole_of(one), err_msg=str(plain))


CHECKS: dict[str, Callable[..., None]] = {
    **{f.__name__: f for f in (stress, same_bits, first_call_captured, two_devices, own_memory, drawn)},
    **{f.__name__: f for f in (bits, gradients)},  # for PyTorch's tensors alone
}


@click.command(cls=Command)
@click.argument("library", type=click.Choice(list(LIBRARIES)))
@click.argument("name", metavar="CHECK", type=click.Choice(list(CHECKS)))
@click.option("--products", type=click.IntRange(1), help="Of stress, in all.")
@click.option("--threads", type=click.IntRange(1), help="Of stress.")
@click.option("--streams", type=click.IntRange(1), help="Of stress, of each thread.")
@click.option("--repeats", type=click.IntRange(1), help="Of the other checks.")
@click.option("--shrink", type=click.IntRange(1), help="Long extents are shorter by this factor.")
@click.option("--launcher", is_flag=True, help="Export the module with its compiled launcher.")
def main(library: str, name: str, launcher: bool, **counts: int | None) -> None:
    """Say on standard error where the threads are, every minute; exit code 0 where all is right."""
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, repeat=True)
    run, arrays = CHECKS[name], LIBRARIES[library]()
    known = inspect.signature(run).parameters
    with tempfile.TemporaryDirectory() as folder:
        best = made_module(arrays, Path(folder), launcher=launcher)
        run(arrays, best, **{option: count for option, count in counts.items() if count and option in known})
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
