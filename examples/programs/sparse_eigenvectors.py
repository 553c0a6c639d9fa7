"""The largest eigenvectors of a sparse matrix by CuPy's `lobpcg`, as it is.

python sparse_eigenvectors.py [UNKNOWNS VECTORS]
"""

import sys
import time
import warnings

try:
    import cupy
    from cupyx.scipy.sparse import diags
    from cupyx.scipy.sparse.linalg import lobpcg
except ModuleNotFoundError as error:
    sys.exit(f"this program needs CuPy ({error}): pip install cupy-cuda12x, or cupy-cuda13x for CUDA 13")

unknowns, vectors = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (2_000_000, 8)
warnings.filterwarnings("ignore", message="Exited")  # before it has converged
cupy.random.seed(0)
matrix = diags(1 + cupy.arange(unknowns) / unknowns)
start = cupy.random.standard_normal((unknowns, vectors))


def found() -> cupy.ndarray:
    """The largest eigenvalues, after 20 iterations."""
    return lobpcg(matrix, start.copy(), maxiter=20, tol=1e-12, largest=True)[0]


found()
cupy.cuda.Device().synchronize()
begin = time.perf_counter()
values = found()
cupy.cuda.Device().synchronize()
print(f"{1e3 * (time.perf_counter() - begin):.3f} ms in all, result {values.sum().item():.6g}")
