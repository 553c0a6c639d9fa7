"""The largest eigenvalues of a banded matrix, by subspace iteration in PyTorch.

python subspace.py [UNKNOWNS VECTORS ITERATIONS]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

unknowns, vectors, iterations = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (16_000, 8, 100)
torch.manual_seed(0)
diagonal = torch.linspace(1, 2, unknowns, device="cuda")[:, None]


def applied(x: torch.Tensor) -> torch.Tensor:
    """The matrix times x."""
    return diagonal * x + 0.25 * (x.roll(1, 0) + x.roll(-1, 0))


def iterated(x: torch.Tensor) -> torch.Tensor:
    """An orthonormal basis of the matrix times x, by a Cholesky factor of its Gram matrix."""
    y = applied(x)
    factor = torch.linalg.cholesky(y.T @ y)
    return torch.linalg.solve_triangular(factor, y.T, upper=False).T


x = torch.randn(unknowns, vectors, device="cuda")
before = (x.T @ applied(x)).trace() / (x * x).sum()  # which is computed once
for _ in range(3):
    x = iterated(x)
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(iterations):
    x = iterated(x)
torch.cuda.synchronize()
milliseconds = 1e3 * (time.perf_counter() - begin) / iterations
values, rotation = torch.linalg.eigh(x.T @ applied(x))
x = x @ rotation
print(
    f"{milliseconds:.3f} ms an iteration, result {values.sum().item():.6g}, at first {before.item():.3g} on average"
)
