"""`jax` of an exported module multiplies as JAX does: on the host, by emulated kernels."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fabricated import host_run, imported, module_of, split_trial
from tests.jax_calls import OVER_FIRST, OVER_LAST, calls, jax, jnp, numbers
from tests.processes import python
from tsm2_tune.generator.problem import Problem
from tsm2_tune.tuner.compile.compiler import Toolchain

OPS = {"f32": ("ttt", "ntt", "tnt", "nxt"), "c64": ("ttt", "ntt", "tnt"), "bf16": ("ttt",)}


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory, session_cache: None, toolchain: Toolchain) -> ModuleType:
    """A module of a host's kernels for OPS."""
    folder = tmp_path_factory.mktemp("module")
    problems = [
        Problem(64, 64 if "x" in op else 4, 64, dtype, op, batch=batch)
        for dtype, ops in OPS.items() for op in ops for batch in (1, 9)
    ]  # fmt: skip
    return module_of(folder, *map(split_trial, problems), run=host_run())


def check(function: Callable[..., Any], expected: Callable[..., Any], *arrays: Any) -> None:
    """Compiled and not, the same numbers."""
    wanted = expected(*arrays)
    for found in (function(*arrays), jax.jit(function)(*arrays)):
        jax.tree.map(np.testing.assert_array_equal, found, wanted)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(lambda x: (x.shape, x.dtype), wanted)


THEIRS = SimpleNamespace(matmul=jnp.matmul, dot_general=jax.lax.dot_general)


def product(of: Any, over: Any = None) -> Callable[..., Any]:
    """Return JAX's or the module's matmul, or its dot_general over these dimensions."""
    return of.matmul if over is None else lambda a, b: of.dot_general(a, b, over)


PLAIN, REAL = ((40, 6), (6, 3)), ("float32", "float32")
BATCH = ((0,), (0,))


@pytest.mark.parametrize(
    ("shapes", "over", "types", "kernels"),
    [
        *((shapes, None, (dtype, dtype), 1) for dtype in ("float32", "complex64", "bfloat16") for shapes in (
            PLAIN, ((6,), (6, 3)), ((40, 6), (6,)), ((2, 5, 7, 6), (6, 3)), ((3, 1, 6), (6,)),
            ((4, 40, 6), (4, 6, 3)), ((2, 3, 5, 6), (2, 3, 6, 3)), ((1, 40, 6), (1, 6, 3)),
        )),
        *((shapes, None, REAL, 0) for shapes in (
            ((6,), (6,)), ((4, 40, 6), (1, 6, 3)), ((40, 6), (4, 6, 3)), ((0, 6), (6, 3)), ((4, 0), (0, 3)),
            ((0, 4, 6), (0, 6, 3)), ((4, 5, 0), (4, 0, 3)),
        )),
        *((PLAIN, None, types, 0) for types in (
            ("int32", "int32"), ("bool", "bool"), ("float16", "float16"), ("float32", "bfloat16"),
            ("float32", "complex64"),
        )),
        *((shapes, over, REAL, kernels) for shapes, over, kernels in (
            (((6, 40), (6, 3)), OVER_FIRST, 1),
            (((40, 6), (3, 6)), OVER_LAST, 1),
            (((2, 3, 40), (2, 3, 5)), (((0, 1), (0, 1)), ((), ())), 1),
            (((4, 5, 2, 3), (2, 3, 5)), (((2, 3), (0, 1)), ((), ())), 1),
            (((4, 5, 6), (6, 2, 2)), (((2,), (0,)), ((), ())), 1),
            (((6, 4), (4, 6)), (((0,), (1,)), ((), ())), 0),  # there is no kernel for it
            (((2, 3, 40), (3, 2, 5)), (((0, 1), (1, 0)), ((), ())), 0),
            (((4, 6, 5), (6, 3)), (((1,), (0,)), ((), ())), 0),
            (((6, 3), (6, 3)), (((0, 1), (0, 1)), ((), ())), 0),
            (((6,), (4,)), (((), ()), ((), ())), 0),
            (((4, 8, 6), (4, 6, 3)), (((2,), (1,)), BATCH), 1),
            (((4, 6, 8), (4, 6, 3)), (((1,), (1,)), BATCH), 1),
            (((2, 4, 8, 6), (2, 4, 6)), (((3,), (2,)), ((0, 1), (0, 1))), 1),
            (((4, 7, 8, 6), (4, 6, 3, 2)), (((3,), (1,)), BATCH), 1),
            (((4, 2, 3, 8), (4, 2, 3, 5)), (((1, 2), (1, 2)), BATCH), 1),
            (((4, 8, 6), (6, 4, 3)), (((2,), (0,)), ((0,), (1,))), 0),  # the batch of b is not in front
            (((8, 4, 6), (6, 4, 3)), (((2,), (0,)), ((1,), (1,))), 0),
            (((4, 6), (4, 6)), (((1,), (1,)), BATCH), 0),  # of vectors
        )),
    ],
)  # fmt: skip
def test_one_product_is_a_kernels_and_others_are_jaxs(
    best: ModuleType, shapes: Any, over: Any, types: Any, kernels: int
) -> None:
    a, b = (numbers(*shape, dtype=dtype) for shape, dtype in zip(shapes, types, strict=True))
    ours = product(best.jax, over)
    check(ours, product(THEIRS, over), a, b)
    assert calls(best, ours, a, b) == kernels


@pytest.mark.parametrize(
    "arguments",
    [
        lambda: (numbers(40, 6), numbers(40, 6)),
        lambda: (1.0, numbers(6, 3)),
        lambda: ([[1.0]], numbers(1, 1)),
        lambda: (numbers(6, 3), jnp.float32(2)),
        lambda: (numbers(2, 3, 6), numbers(3, 6, 2)),
    ],
    ids=["inner", "number", "list", "scalar", "batches"],
)
def test_errors_are_jaxs(best: ModuleType, arguments: Callable[[], Any]) -> None:
    given = arguments()
    with pytest.raises((TypeError, ValueError)) as theirs:
        jnp.matmul(*given)
    with pytest.raises(type(theirs.value)) as ours:
        best.jax.matmul(*given)
    assert str(ours.value) == str(theirs.value)


def test_a_result_is_as_weakly_typed_as_jaxs(best: ModuleType) -> None:
    weak, strong = jax.lax.broadcast(1.0, (40, 6)), numbers(40, 6)
    for a, b in ((weak, weak.T), (weak, strong.T), (strong, weak.T)):
        assert jax.typeof(best.jax.matmul(a, b)) == jax.typeof(jnp.matmul(a, b))
        gradients = [jax.grad(loss(f), (0, 1))(a, b) for f in (best.jax.matmul, jnp.matmul)]
        assert [jax.typeof(x) for x in gradients[0]] == [jax.typeof(x) for x in gradients[1]]


PRESET = jax.lax.DotAlgorithmPreset.BF16_BF16_F32
PRECISIONS = None, "high", "float32", jax.lax.Precision.HIGHEST, ("default", "highest"), ["high", "high"]


def test_kernels_multiply_in_no_other_way_than_is_asked(best: ModuleType) -> None:
    a, b = numbers(40, 6), numbers(6, 3)
    for one in (*PRECISIONS, PRESET):
        assert calls(best, partial(best.jax.matmul, precision=one), a, b) == (one is not PRESET)
    assert calls(best, partial(best.jax.matmul, preferred_element_type=None), a, b) == 1
    with jax.default_matmul_precision("BF16_BF16_F32"):
        assert calls(best, lambda a, b: best.jax.matmul(a, b), a, b) == 0
    over = (((1,), (0,)), ((), ()))
    of_flax = {"precision": None, "preferred_element_type": None, "out_sharding": None}
    assert calls(best, lambda a, b: best.jax.dot_general(a, b, over, **of_flax), a, b) == 1
    half = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    wide = partial(best.jax.dot_general, dimension_numbers=over, preferred_element_type=jnp.float32)
    assert (calls(best, wide, *half), wide(*half).dtype) == (0, jnp.float32)
    half = numbers(40, 6, dtype="float16"), numbers(6, 3, dtype="float16")  # whose product is JAX's
    with jax.default_matmul_precision("highest"):
        assert "HIGHEST" in jax.jit(lambda a, b: best.jax.matmul(a, b)).lower(*half).as_text()


# JAX's transformations


def loss(multiply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: (multiply(a, b) ** 2).real.sum()


def jvp(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: jax.jvp(f, (a, b), (2 * a, b))


# By name: shapes of a and b, and what a program makes of a product.
TRANSFORMED: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]] = {
    "checkpoint": ((4, 3), (3, 2), lambda f: jax.grad(jax.checkpoint(loss(f)))),
    "transpose": ((4, 3), (3, 2), lambda f: lambda a, b: jax.linear_transpose(lambda x: f(x, b), a)(f(a, b))[0]),
    "batch of gradients": ((5, 8, 6), (6, 3), lambda f: jax.vmap(jax.grad(loss(f), (0, 1)), (0, None))),
    "scan": ((6, 6), (6, 3), lambda f: lambda a, b: jax.lax.scan(
        lambda x, _: (f(a, x) % 5, f(x.T, x).sum()), b, None, length=4)),
    "loop": ((6, 6), (6, 3), lambda f: lambda a, b: jax.lax.fori_loop(0, 3, lambda _, x: f(a, x) % 5, b)),
    "condition": ((6, 6), (6, 3), lambda f: lambda a, b: jax.lax.cond(a[0, 0] > 100, lambda: b, lambda: f(a, b))),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformed_products_are_jaxs(best: ModuleType, name: str) -> None:
    *shapes, of = TRANSFORMED[name]
    a, b = (numbers(*shape) for shape in shapes)
    check(of(best.jax.matmul), of(jnp.matmul), a, b)


@pytest.mark.parametrize(
    ("axes", "over", "by_kernels"),
    [
        ((0, None), (1, 0), 1), ((2, None), (1, 0), 1), ((None, 0), (1, 1), 1), ((None, 0), (1, 0), 1),
        ((0, None), (0, 0), 1), ((0, 0), (1, 0), 1), ((0, 1), (0, 0), 1), ((0, 0), (1, 1), 1),
        ((0, 0), (0, 1), 0),  # no kernel has these storage orders
    ],
)  # fmt: skip
def test_batches_of_vmap_are_kernels(best: ModuleType, axes: Any, over: Any, by_kernels: int) -> None:
    dimensions = ((over[:1], over[1:]), ((), ()))
    a, b = numbers(*(8, 6)[:: 1 if over[0] else -1]), numbers(*(6, 3)[:: -1 if over[1] else 1])
    given = [
        x if axis is None else jnp.stack([x, 2 * x, -x, x, 3 * x], axis) for x, axis in zip((a, b), axes, strict=True)
    ]
    ours, theirs = (jax.vmap(product(of, dimensions), axes) for of in (best.jax, THEIRS))
    check(ours, theirs, *given)
    assert calls(best, ours, *given) == by_kernels


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("axes", [(None, None), (0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("over", [(1, 0), (0, 0), (1, 1)])
def test_derivatives_are_jaxs(best: ModuleType, over: tuple[int, int], axes: Any, dtype: str) -> None:
    """In reverse and in forward mode, and again; a matrix for all products gets the sum over them."""
    dimensions = ((over[:1], over[1:]), ((), ()))
    shapes = (4, 3)[:: 1 if over[0] else -1], (3, 2)[:: -1 if over[1] else 1]
    a, b = (numbers(*[5] * (at == 0), *shape, dtype=dtype) for shape, at in zip(shapes, axes, strict=True))
    functions = [product(of, dimensions) for of in (best.jax, THEIRS)]
    ours, theirs = (loss(f if axes == (None, None) else jax.vmap(f, axes)) for f in functions)
    for of in (jvp, lambda f: jax.grad(f, (0, 1)), lambda f: jax.jacfwd(jax.grad(f))):
        check(of(ours), of(theirs), a, b)
        if dtype == "complex64" and (of is not jvp or axes != (None, None)):
            break
    if axes == (None, None):
        assert calls(best, jax.grad(ours, (0, 1)), a, b) == 3
        assert calls(best, jvp(functions[0]), a, b) == 3


@pytest.mark.parametrize(
    ("axes", "inner", "by_kernels"),
    [((0, 0), (0, 0), 1), ((0, None), (0, None), 1), ((0, 0), (0, None), 1), ((0, None), (None, 0), 0)],
)
def test_nested_batches_are_one_batch_if_they_can(best: ModuleType, axes: Any, inner: Any, by_kernels: int) -> None:
    shapes = ((8, 6), (6, 3))
    a, b = (
        numbers(*([3] * (outer == 0)), *([5] * (within == 0)), *shape)
        for outer, within, shape in zip(axes, inner, shapes, strict=True)
    )
    ours, theirs = (jax.vmap(jax.vmap(f, inner), axes) for f in (best.jax.matmul, jnp.matmul))
    check(ours, theirs, a, b)
    assert calls(best, ours, a, b) == by_kernels


# X^T X


def test_a_matrix_by_itself_is_told_so(best: ModuleType) -> None:
    """Here this changes nothing: the kernel of op nx multiplies all. Derivatives are of two factors."""
    x, by_itself = numbers(40, 6), (((1,), (1,)), BATCH)
    both = jnp.stack([x, 1 + x])

    def gram(x: Any, over: Any = OVER_FIRST) -> Any:
        return best.jax.dot_general(x, x, over)

    def theirs(x: Any) -> Any:
        return x.T @ x

    def text(function: Callable[..., Any], *arrays: Any) -> str:
        return str(jax.jit(function).lower(*arrays).as_text()).replace("\\22", '"')

    of_batch = partial(gram, over=by_itself)
    for function, given in ((gram, x), (of_batch, both)):
        assert '"f32", [true, false], true,' in text(function, given)
    assert re.search(rf"@{best.target_of_xla()}\((%\w+), \1\)", text(gram, x))
    assert '"f32", [true, false], false,' in text(lambda x, y: best.jax.dot_general(x, y, OVER_FIRST), x, x)
    check(gram, theirs, x)
    check(*(jax.grad(lambda x, f=f: (f(x) ** 2).sum()) for f in (gram, theirs)), x)
    check(*(jax.jacfwd(f) for f in (gram, theirs)), x)
    check(jax.vmap(gram), jax.vmap(theirs), both)
    check(of_batch, jax.vmap(theirs), both)


# Exported programs


def test_extents_without_numbers_are_jaxs(best: ModuleType) -> None:
    (rows,) = jax.export.symbolic_shape("m")
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((rows, 6), (6, 3))]
    assert best.target_of_xla() not in jax.export.export(jax.jit(best.jax.matmul))(*arrays).mlir_module()
    batch = jax.ShapeDtypeStruct((rows, 5, 6), jnp.float32)
    each = jax.jit(jax.vmap(best.jax.matmul, (0, None)))
    assert best.target_of_xla() not in jax.export.export(each)(batch, arrays[1]).mlir_module()


IMPORTED = """
import sys, importlib.util, numpy as np, jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
spec = importlib.util.spec_from_file_location("best_kernels", sys.argv[1])
best = sys.modules["best_kernels"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(best)
"""
OTHER_PROCESS = """
assert "jax" not in vars(best)
best.jax
a, b = np.arange(240, dtype=np.float32).reshape(40, 6) % 7, np.arange(18, dtype=np.float32).reshape(6, 3) % 5
program = jax.export.deserialize(bytearray(open(sys.argv[2], "rb").read()))
np.testing.assert_array_equal(program.call(a, b), a @ b)
"""


def test_a_program_runs_in_another_process_with_the_same_file(best: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    arrays = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((40, 6), (6, 3))]
    known = jax.export.DisabledSafetyCheck.custom_call(best.target_of_xla())
    made = jax.export.export(jax.jit(best.jax.matmul), disabled_checks=[known])(*arrays)
    assert best.target_of_xla() in made.mlir_module()
    (path := tmp_path / "program").write_bytes(made.serialize())
    run_python(OTHER_PROCESS, str(best.__file__), str(path))


SEVERAL_DEVICES = """
a, b = jnp.arange(240.0).reshape(40, 6) % 7, jnp.arange(18.0).reshape(6, 3) % 5
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
parts, whole = P("d", None), P(None, None)
name = f"@{best.target_of_xla()}("

def each(f, out=parts):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(parts, whole), out_specs=out))

def same(ours, theirs, *arrays):
    jax.tree.map(np.testing.assert_array_equal, ours(*arrays), theirs(*arrays))
    return jax.jit(ours).lower(*arrays).as_text().count(name)

loss = lambda f: lambda a, b: (f(a, b) ** 2).sum()
assert same(each(best.jax.matmul), each(jnp.matmul), a, b) == 1
assert same(*(jax.grad(loss(each(f)), (0, 1)) for f in (best.jax.matmul, jnp.matmul)), a, b) == 3
divided = jax.device_put(a, NamedSharding(mesh, parts)), jax.device_put(b, NamedSharding(mesh, whole))
assert same(best.jax.matmul, jnp.matmul, *divided) == 0
told = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(told):
    for of_a, of_b in ((parts, whole), (whole, P(None, "d"))):
        divided = [jax.device_put(x, NamedSharding(told, of)) for x, of in ((a, of_a), (b[:, :2], of_b))]
        assert same(best.jax.matmul, jnp.matmul, *divided) == 0
        assert jax.typeof(best.jax.matmul(*divided)) == jax.typeof(jnp.matmul(*divided))
"""


def test_products_on_several_devices_are_jaxs_but_for_shard_maps(best: ModuleType) -> None:
    """Compare with JAX in a program with two devices. `run_python` fails if an assertion of the program does."""
    run_python(SEVERAL_DEVICES, str(best.__file__), XLA_FLAGS="--xla_force_host_platform_device_count=2")


def run_python(program: str, *arguments: str, **environment: str) -> None:
    """Run a program with the module in a process of its own, on the CPU. Fail with its standard error if it fails."""
    at = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    done = python("-c", IMPORTED + program, *arguments, env=at, timeout=120)
    assert done.returncode == 0, done.stderr


def test_two_modules_of_one_file_are_one_to_xla(best: ModuleType, tmp_path: Path) -> None:
    a, b = numbers(40, 6), numbers(6, 3)
    before = sys.modules["best_kernels"]
    other = imported(Path(str(best.__file__)).read_text(encoding="utf-8"), tmp_path)
    sys.modules["best_kernels"] = before
    check(other.jax.matmul, best.jax.matmul, a, b)
