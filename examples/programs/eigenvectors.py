"""The largest eigenvectors of a sparse matrix by `torch.lobpcg`, as it is.

python eigenvectors.py [UNKNOWNS VECTORS]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

unknowns, vectors = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (2_000_000, 8)
torch.manual_seed(0)
places = torch.arange(unknowns, device="cuda")
matrix = torch.sparse_coo_tensor(
    torch.stack((places, places)), 1 + places.to(torch.float64) / unknowns, (unknowns, unknowns)
).coalesce()
start = torch.randn(unknowns, vectors, device="cuda", dtype=torch.float64)


def found() -> torch.Tensor:
    """The largest eigenvalues, after 20 iterations."""
    return torch.lobpcg(matrix, X=start, niter=20, tol=1e-12, largest=True, method="ortho")[0]


found()
torch.cuda.synchronize()
begin = time.perf_counter()
values = found()
torch.cuda.synchronize()
print(f"{1e3 * (time.perf_counter() - begin):.3f} ms in all, result {values.sum().item():.8g}")
