"""The namespace `jax` of an exported module: dot_general and matmul that use tuned kernels.

Both functions bind a JAX primitive that stands for a product of two matrices. The primitive's derivatives bind the
same primitive. When JAX compiles a function, the lowering emits either a call of this module's XLA handler or JAX's
own product.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

from tsm2_tune.runtime.elements import dtype_name
from tsm2_tune.runtime.jax.lowering import Traced, start_traced, workspace_layout
from tsm2_tune.runtime.jax.xla_ffi import xla_handler
from tsm2_tune.runtime.module_data import IDENTITY

PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}  # JAX's platforms with kernels -> XLA's names
PLATFORM_OF_HOST = "cpu"  # platform on which kernels are emulated
# JAX's precisions that kernels satisfy: they multiply without rounding and sum in the accumulator type.
PRECISIONS = ("default", "fastest", "bfloat16", "high", "tensorfloat32", "highest", "float32")
HANDLERS = "_tsm2_handlers"  # attribute of the jax module: (name in XLA, platform) -> handler, never removed


def jax_namespace() -> SimpleNamespace:
    """Return a namespace with `dot_general` and `matmul`. Raise RuntimeError if JAX is not installed."""
    try:
        import jax
    except ImportError as error:
        raise RuntimeError(f"it needs JAX: {error}") from error

    for platform in PLATFORMS.values():
        _register(jax, platform)
    product = _primitive(jax)
    static = {"static_argnames": ("dimensions", "precision", "is_same"), "inline": True}
    general = jax.jit(partial(_general, jax, product), **static)

    def dot_general(
        lhs: Any,
        rhs: Any,
        dimension_numbers: Any,
        precision: Any = None,
        preferred_element_type: Any = None,
        **named: Any,
    ) -> Any:
        """Return the result of jax.lax.dot_general. It works under jit, grad, jvp, vmap and other transformations.

        A call is a product of two matrices if the contracted dimensions of each array are its first or its last ones,
        in order; it is a batch of such products if the batch dimensions are in front of those. A kernel computes the
        product or the batch if `choice` would return a kernel. For example, dot_general(x, y, (((0,), (0,)), ((),
        ()))) is x.T @ y without a transposed copy of x. dot_general(x, x, ...) may compute only half of the symmetric
        result. JAX computes all other products. Errors are those of JAX.
        """
        named = {name: value for name, value in named.items() if value is not None}
        wanted = precision if precision is not None else jax.config.jax_default_matmul_precision
        wanted = tuple(wanted) if isinstance(wanted, list) else wanted
        found = None if named else _found_matrices(lhs, rhs, dimension_numbers, preferred_element_type, wanted)
        types = None if found is None else (jax.typeof(lhs), jax.typeof(rhs))
        if found is None or types is None or any(map(_is_divided, types)):
            named |= {"precision": precision, "preferred_element_type": preferred_element_type}
            return jax.lax.dot_general(lhs, rhs, dimension_numbers, **named)
        is_same = lhs is rhs
        lhs, rhs = _varying_alike(jax, (lhs, rhs), types)
        return general(lhs, rhs, dimensions=found, precision=wanted, is_same=is_same)

    def matmul(a: Any, b: Any, *, precision: Any = None, **named: Any) -> Any:
        """Return the result of jax.numpy.matmul. It works under jit, grad, jvp, vmap and other transformations.

        If b is a matrix or vector, a batch `a` is multiplied as one tall matrix. A kernel computes the product or the
        batch if `choice` would return a kernel. JAX computes all other products: two vectors, batches whose leading
        dimensions differ, element types that differ or have no kernel. Errors are those of JAX.
        """
        named = {name: value for name, value in named.items() if value is not None}
        numbers = None if named else _dimension_numbers(a, b)
        if numbers is None or _found_matrices(a, b, numbers, None, None) is None:
            return jax.numpy.matmul(a, b, precision=precision, **named)
        return dot_general(a, b, numbers, precision)

    return SimpleNamespace(dot_general=dot_general, matmul=matmul)


# Products of two matrices

# Number of contracted dimensions; whether they are the first dimensions of lhs and of rhs, and not the last ones;
# number of batch dimensions, which are in front of all others
Dimensions = tuple[int, bool, bool, int]


def _dimension_numbers(a: Any, b: Any) -> Any:
    """Return dot_general's dimension_numbers for a @ b; None if it is neither one product nor a batch."""
    of_a: Any = getattr(a, "shape", ())
    of_b: Any = getattr(b, "shape", ())
    is_batch = len(of_b) > 2 and of_a[:-2] == of_b[:-2]
    is_one = 0 < len(of_b) <= 2 and len(of_a) > 0 and len(of_a) + len(of_b) > 2
    if not (is_one or is_batch):
        return None
    products = tuple(range(len(of_b) - 2)) if is_batch else ()
    return ((len(of_a) - 1,), (len(products),)), (products, products)


def _found_matrices(a: Any, b: Any, dimension_numbers: Any, preferred: Any, precision: Any) -> Dimensions | None:
    """Return how the arrays are reshaped to two matrices that a kernel can multiply; None if that is not possible."""
    try:
        asked = (a.shape, b.shape, a.dtype, b.dtype, dimension_numbers, preferred, precision)
    except AttributeError:  # the arguments are not arrays
        return None
    try:
        return _known_matrices(*asked)
    except TypeError:  # unhashable arguments, such as lists
        return _as_matrices(*asked)


def _as_matrices(
    of_a: tuple[Any, ...],
    of_b: tuple[Any, ...],
    type_a: Any,
    type_b: Any,
    numbers: Any,
    preferred: Any,
    precision: Any,
) -> Dimensions | None:
    """Return how arrays of these shapes and types are reshaped to two matrices for a kernel; None if they are not."""
    element = _element(type_a) if type_a == type_b else None
    if element is None or not _is_met(precision) or (preferred is not None and _element(preferred) != element):
        return None
    try:
        (over_a, over_b), (batch_a, batch_b) = numbers
        count, products = len(over_a), len(batch_a)
        if not list(batch_a) == list(batch_b) == list(range(products)) or of_a[:products] != of_b[:products]:
            return None
        over_a, over_b = ([one - products for one in over] for over in (over_a, over_b))
    except (TypeError, ValueError):
        return None
    if not all(map(_is_known, (*of_a, *of_b))):
        return None
    of_a, of_b = of_a[products:], of_b[products:]
    if count != len(over_b) or not 0 < count <= min(len(of_a), len(of_b)) or max(len(of_a), len(of_b)) <= count:
        return None
    firsts = []
    for over, shape in ((over_a, of_a), (over_b, of_b)):
        first, last = list(range(count)), list(range(len(shape) - count, len(shape)))
        if over not in (first, last):
            return None
        firsts.append(over == first and len(shape) > count)
    if [of_a[x] for x in over_a] != [of_b[x] for x in over_b]:
        return None
    return count, firsts[0], firsts[1], products


_known_matrices = lru_cache(maxsize=4096)(_as_matrices)


def _element(dtype: Any) -> str | None:
    """Return the key in DTYPES of a dtype; None if no kernel has this element type."""
    try:
        return dtype_name(getattr(dtype, "dtype", dtype))
    except TypeError:
        return None


def _is_divided(of_type: Any) -> bool:
    """Return whether an array of this JAX type is sharded over several devices."""
    sharding = getattr(of_type, "sharding", None)
    return sharding is not None and any(part is not None for part in sharding.spec)


def _varying_alike(jax: Any, arrays: tuple[Any, Any], types: tuple[Any, Any]) -> Any:
    """Return the arrays cast to the same varying mesh axes, which shard_map tracks in JAX's types."""
    of_each = [getattr(of, "manual_axis_type", None) for of in types]
    if of_each[0] == of_each[1]:
        return arrays
    varying = [frozenset() if of is None else of.varying for of in of_each]
    lacking = [tuple(frozenset().union(*varying) - of) for of in varying]
    return [jax.lax.pcast(x, names, to="varying") if names else x for x, names in zip(arrays, lacking, strict=True)]


def _is_met(precision: Any) -> bool:
    """Return whether kernels are at least as precise as this JAX precision: None, a name, a member, or a pair."""
    both = precision if isinstance(precision, tuple) else (precision,)
    return all(one is None or str(getattr(one, "name", one)).lower() in PRECISIONS for one in both)


def _general(
    jax: Any, product: Any, lhs: Any, rhs: Any, *, dimensions: Dimensions, precision: Any, is_same: bool
) -> Any:
    """Reshape each array to matrices without a copy, multiply with the primitive, and reshape the result."""
    count, *are_first, products = dimensions
    matrices, free, leading = [], [], lhs.shape[:products]
    for x, is_first in zip((lhs, rhs), are_first, strict=True):
        of_one = x.shape[products:]
        at = count if is_first else len(of_one) - count
        of_batch = (math.prod(leading),) if products else ()
        matrices.append(x.reshape(*of_batch, math.prod(of_one[:at]), math.prod(of_one[at:])))
        free.append(of_one[at:] if is_first else of_one[:at])
    of = {"over": tuple(0 if one else 1 for one in are_first), "precision": precision, "is_same": is_same}
    return product.bind(*matrices, **of).reshape(leading + free[0] + free[1])


# The primitive. Its operands are matrices, or batches with one dimension in front. A matrix beside a batch is for all
# products. `over` has the contracted dimension, 0 or 1, of the matrices of each operand


def _primitive(jax: Any) -> Any:
    """Return the primitive, with its rules for evaluation, differentiation, batching and lowering."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    product = Primitive(target_of_xla())
    bound = jax.jit(product.bind, static_argnames=("over", "precision", "is_same"))
    product.def_impl(bound)
    product.def_abstract_eval(partial(_abstract, jax))
    ad.defjvp(
        product,
        lambda g, a, b, over, precision, is_same: product.bind(g, b, over=over, precision=precision, is_same=False),
        lambda g, a, b, over, precision, is_same: product.bind(a, g, over=over, precision=precision, is_same=False),
    )
    ad.primitive_transposes[product] = partial(_transposed, jax, ad, product)
    batching.primitive_batchers[product] = partial(_batched, jax, product)
    own = mlir.lower_fun(partial(_by_jax, jax), multiple_results=False)
    mlir.register_lowering(product, own)
    for platform in PLATFORMS:
        mlir.register_lowering(product, partial(_lowered, jax, mlir, own, platform), platform=platform)
    return product


def _abstract(jax: Any, a: Any, b: Any, *, over: tuple[int, int], precision: Any, is_same: bool) -> Any:
    return a.update(shape=_shape_of_result(a.shape, b.shape, over), weak_type=a.weak_type and b.weak_type)


def _shape_of_result(of_a: tuple[Any, ...], of_b: tuple[Any, ...], over: tuple[int, int]) -> tuple[Any, ...]:
    return (*(of_a[:-2] or of_b[:-2]), of_a[-1 - over[0]], of_b[-1 - over[1]])


def _by_jax(jax: Any, a: Any, b: Any, *, over: tuple[int, int], precision: Any, is_same: bool) -> Any:
    contracted = (a.ndim - 2 + over[0],), (b.ndim - 2 + over[1],)
    products = (0,) if a.ndim == b.ndim == 3 else ()
    found = jax.lax.dot_general(a, b, (contracted, (products, products)), precision=precision)
    return jax.numpy.moveaxis(found, 1, 0) if a.ndim < b.ndim else found


def _transposed(
    jax: Any, ad: Any, product: Any, gradient: Any, a: Any, b: Any, *, over: Any, precision: Any, is_same: bool
) -> Any:
    """Transpose rule: return the cotangents of a and b, None for the defined operand, in the storage orders."""
    of_a, of_b = over
    if type(gradient) is ad.Zero:
        return (None, None)
    is_of_a = ad.is_undefined_primal(a)
    if is_of_a:
        arrays, along = ((gradient, b), (1, 1 - of_b)) if of_a == 1 else ((b, gradient), (1 - of_b, 1))
    else:
        arrays, along = ((a, gradient), (1 - of_a, 0)) if of_b == 0 else ((gradient, a), (0, 1 - of_a))
    if gradient.ndim == 3 and len((a if is_of_a else b).aval.shape) == 2:  # a matrix for all products: sum over them
        contracted = tuple((0, 1 + one) for one in along)
        found = jax.lax.dot_general(*arrays, (contracted, ((), ())), precision=precision)
    else:
        found = _multiplied(product, *arrays, over=along, precision=precision, is_same=False)
    return (found, None) if is_of_a else (None, found)


def _multiplied(product: Any, a: Any, b: Any, **of: Any) -> Any:
    """Bind the primitive. A batch `a` whose rows follow one another is one product with a matrix b."""
    if a.ndim < 3 or b.ndim > 2 or of["over"][0] == 0:
        return product.bind(a, b, **of)
    found = product.bind(a.reshape(math.prod(a.shape[:-1]), a.shape[-1]), b, **of)
    return found.reshape(*a.shape[:-1], found.shape[1])


def _batched(jax: Any, product: Any, arrays: Any, batches: Any, *, over: Any, precision: Any, is_same: bool) -> Any:
    """Batching rule: return the result and its batch dimension.

    If only b has a batch dimension and each row of b is contracted, the batch becomes rows of one b.
    """
    named = {"over": over, "precision": precision, "is_same": False}
    a, b = (x if at is None else jax.numpy.moveaxis(x, at, 0) for x, at in zip(arrays, batches, strict=True))
    if batches[0] is None and over[1] == 1 and (a.ndim, b.ndim) == (2, 3):
        count, n, k = b.shape
        found = product.bind(a, b.reshape(count * n, k), **named)
        return found.reshape(found.shape[0], count, n), 1
    inner = [x.ndim - (at is not None) for x, at in zip(arrays, batches, strict=True)]
    if 3 in inner and 3 in (a.ndim, b.ndim):  # one operand is a batch of one dimension, of two that are not one
        return jax.vmap(partial(_by_jax, jax, **named), batches)(*arrays), 0
    products = a.shape[:-2] or b.shape[:-2]
    a, b = (x.reshape(math.prod(products), *x.shape[-2:]) if x.ndim > 3 else x for x in (a, b))
    found = _multiplied(product, a, b, **named)
    return found.reshape(*products, *found.shape[-2:]), 0


# Lowering


def _lowered(jax: Any, mlir: Any, own: Any, platform: str, context: Any, a: Any, b: Any, **of: Any) -> Any:
    """Lowering rule for the platform: return the MLIR values of a call of the XLA handler or of JAX's product."""
    (array_a, array_b), found = context.avals_in, None
    over, is_same, on_host = of["over"], of["is_same"], platform == PLATFORM_OF_HOST
    shape = _shape_of_result(array_a.shape, array_b.shape, over)
    extents = (*shape[-2:], array_a.shape[array_a.ndim - 2 + over[0]])
    device = None if on_host else _device_name(jax, platform)
    is_known = all(map(_is_known, (*shape, *extents)))
    if (on_host or device) and _is_alone(context.module_context.axis_context) and is_known:
        across = (over[0] == 0, over[1] == 1)
        batch, are_shared = (
            (shape[0], (array_a.ndim == 2, array_b.ndim == 2)) if len(shape) > 2 else (None, (False, False))
        )
        traced = Traced(extents, dtype_name(array_a.dtype), across, is_same, on_host, batch, are_shared)
        found = traced.choice(device)
    if found is None:
        return own(context, a, b, **of)
    text, workspace_size = traced.text(found), 0 if on_host else workspace_layout(found)[0]

    def call(a: Any, b: Any) -> Any:
        results = [jax.ShapeDtypeStruct(shape, array_a.dtype)]
        if workspace_size:  # a second result, for which XLA allocates memory until the product is computed
            results.append(jax.ShapeDtypeStruct((workspace_size,), jax.numpy.uint8))
        return jax.ffi.ffi_call(target_of_xla(), results)(a, b, product=text)[0]

    return mlir.lower_fun(call, multiple_results=False)(context, a, b)


def _is_known(extent: Any) -> bool:
    return isinstance(extent, int)


def _is_alone(axes: Any) -> bool:
    """Return whether each device computes the whole product, because JAX cannot partition a custom call."""
    by_hand = getattr(axes, "manual_axes", None)  # axes of the mesh of shard_map
    if by_hand is not None:
        return all(extent == 1 or name in by_hand for name, extent in axes.mesh.shape.items())
    return bool(getattr(axes, "num_devices", 1) == 1)


def _device_name(jax: Any, platform: str) -> str | None:
    """Return the name of this process's first device of the platform; None if there is none (cross-compilation)."""
    try:
        return str(jax.local_devices(backend=platform)[0].device_kind)
    except RuntimeError:
        return None


def target_of_xla() -> str:
    """Return the name under which this file's handler is registered with XLA."""
    return f"tsm2_{IDENTITY[:16]}"


def _register(jax: Any, platform: str) -> None:
    """Register this file's handler with XLA for the platform, unless that was done before in this process."""
    handlers = vars(jax).setdefault(HANDLERS, {})
    if (target_of_xla(), platform) not in handlers:
        handlers[target_of_xla(), platform] = handler = xla_handler(start_traced)
        jax.ffi.register_ffi_target(target_of_xla(), jax.ffi.pycapsule(handler), platform=platform)
