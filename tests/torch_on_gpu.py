"""Check PyTorch's products by an exported module on a GPU, in a process of its own.

    python -m tests.torch_on_gpu export best_kernels.py
    python -m tests.torch_on_gpu best_kernels.py samples layouts

The checks are those of tests/torch_checks.py, of tests/torch_programs.py, and the following, which need a GPU.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.array_libraries import Torch
from tests.fabricated import imported_from, kernels_of, winners
from tests.threads_on_gpu import PATIENCE_SECONDS, in_threads
from tests.torch_checks import CHECKS, about, counted, is_untouched, same, trials_of_all
from tests.torch_programs import PROGRAMS, drawn
from tsm2_tune.tuner.export.cubins import compiled_cubins
from tsm2_tune.tuner.export.module import launcher_binary, module_text


def module_of_gpu(path: Path, *, launcher: bool = False) -> None:
    """Write a module of the checks, with binaries, for the GPU that is here."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = kernels_of(winners(Path(folder), *trials_of_all(*Torch().device())))
    cubins, missing = compiled_cubins(kernels, print)
    assert missing == []
    text = module_text(kernels, {}, "results.db", cubins, launcher_binary() if launcher else None)
    path.write_text(text, encoding="utf-8")


def captured(best: ModuleType, device: str) -> None:
    """Products go into a CUDA graph; while one is captured those whose kernel is not loaded are PyTorch's."""
    import torch

    a, b, c = drawn(device, "float32")
    out, more = torch.zeros_like(c), torch.zeros_like(c)
    expected, expected_more = a @ b, torch.addmm(c, a, b)

    def graph() -> Any:
        made = torch.cuda.CUDAGraph()
        with torch.cuda.graph(made):
            out.copy_(a @ b)
            more.copy_(torch.addmm(c, a, b))
        return made

    def is_right(made: Any) -> None:
        for _ in range(3):
            out.zero_()
            more.zero_()
            made.replay()
            same(a @ b, expected)  # beside it
            about([out, more], [expected, expected_more])

    assert not best._functions
    with best.installed():
        with counted(best) as started:
            first = graph()
        assert started == []  # nothing is loaded
        is_right(first)
        best.load()
        best.plans.clear()
        with counted(best) as started:
            second = graph()
        assert len(started) == 2
        is_right(second)
        with counted(best) as started:
            third = graph()
        assert len(started) == 2
    is_right(third)


def in_compiled_graphs(best: ModuleType, device: str) -> None:
    """Compiled programs that replay CUDA graphs, by our operators and by PyTorch's, with kernels that split k."""
    import torch

    a, b, c = drawn(device, "float32")
    best.load()

    def by_own(a: Any, b: Any, c: Any) -> Any:
        return best.torch.addmm(c, best.torch.mm(a, b), b.mT @ b).mul(0.01).tanh()

    def by_torchs(a: Any, b: Any, c: Any) -> Any:
        return torch.addmm(c, torch.mm(a, b), b.mT @ b).mul(0.01).tanh()

    for program, install in ((by_own, False), (by_torchs, True)):
        torch.compiler.reset()
        made = torch.compile(program, mode="reduce-overhead", fullgraph=True)
        for turn in range(5):
            x, y, z = a + turn, b - turn, c * turn
            expected = by_torchs(x, y, z)
            if install:
                with best.installed():
                    found = made(x, y, z)
            else:
                found = made(x, y, z)
            about(found, expected)
    torch.compiler.reset()


def in_streams(best: ModuleType, device: str) -> None:
    """Products go to the stream that is current in the thread, after what was started there."""
    import torch

    a, b, _ = drawn(device, "float32")
    expected = a @ b

    def work(number: int) -> None:
        stream = torch.cuda.Stream()
        late, out = torch.zeros_like(a), torch.zeros_like(expected)
        torch.cuda.synchronize()
        for _ in range(20):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(2_000_000)
                torch.mul(a, number, out=late)
                torch.mm(late, b, out=out)
                read = out.clone() + late @ b
                late.zero_()
                out.zero_()
                stream.synchronize()
            about(read, 2 * number * expected)

    with best.installed(), counted(best) as started:
        in_threads([lambda number=number: work(number) for number in (1, 2, 4)])  # type: ignore[misc]
    assert len(started) == 120


def on_two_devices(best: ModuleType, device: str) -> None:
    """Products run where their tensors are, whichever device is current."""
    import torch

    if torch.cuda.device_count() < 2:
        print("on_two_devices: there is one GPU")
        return
    a, b, c = (x.to("cuda:1") for x in drawn(device, "float32"))
    expected = [a @ b, torch.addmm(c, a, b)]
    with torch.cuda.device(0), best.installed(), counted(best) as started:
        found = [a @ b, torch.addmm(c, a, b)]
        about(found, expected)
        assert {str(x.device) for x in found} == {"cuda:1"}
        assert torch.cuda.current_device() == 0
    assert len(started) == 2


ALL = CHECKS | PROGRAMS | {
    one.__name__: one for one in (captured, in_compiled_graphs, in_streams, on_two_devices)
}  # fmt: skip


if __name__ == "__main__":
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, repeat=True)
    if sys.argv[1] == "export":
        module_of_gpu(Path(sys.argv[2]), launcher="--launcher" in sys.argv)
    else:
        module = imported_from(Path(sys.argv[1]))
        for check in sys.argv[2:]:
            began = time.monotonic()
            is_untouched(ALL[check], module, "cuda")
            print(f"{check}: {time.monotonic() - began:.1f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
