"""GMRES with 50 Krylov vectors, by CuPy, as it is.

python gmres.py [UNKNOWNS VECTORS]
"""

import sys
import time

try:
    import cupy
    from cupyx.scipy.sparse import diags
    from cupyx.scipy.sparse.linalg import gmres
except ModuleNotFoundError as error:
    sys.exit(f"this program needs CuPy ({error}): pip install cupy-cuda12x, or cupy-cuda13x for CUDA 13")

unknowns, vectors = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (2_000_000, 50)
cupy.random.seed(0)
matrix = diags(1 + 1e4 * cupy.arange(unknowns) / unknowns)
right = cupy.random.standard_normal(unknowns)


def solved() -> cupy.ndarray:
    """After one cycle."""
    return gmres(matrix, right, restart=vectors, maxiter=vectors, rtol=1e-14)[0]


solved()
cupy.cuda.Device().synchronize()
begin = time.perf_counter()
found = solved()
cupy.cuda.Device().synchronize()
ms = 1e3 * (time.perf_counter() - begin)
print(f"{ms:.3f} ms a cycle, result {cupy.linalg.norm(right - matrix @ found).item():.6g}")
