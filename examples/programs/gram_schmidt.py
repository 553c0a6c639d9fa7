"""Classical Gram-Schmidt of Krylov vectors, twice for each new one, as in GMRES, in PyTorch.

python gram_schmidt.py [UNKNOWNS VECTORS TURNS]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

unknowns, vectors, turns = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (2_000_000, 50, 5)
torch.manual_seed(0)
start = torch.randn(unknowns, device="cuda", dtype=torch.float64)
scale = torch.linspace(1, 2, unknowns, device="cuda", dtype=torch.float64)


def basis() -> torch.Tensor:
    """Orthonormal vectors, one a row, each the one before times a diagonal matrix, made orthogonal to all."""
    v = torch.empty(vectors, unknowns, device="cuda", dtype=torch.float64)
    v[0] = start / start.norm()
    for number in range(1, vectors):
        w = scale * v[number - 1]
        for _ in range(2):
            w = w - v[:number].T @ (v[:number] @ w)
        v[number] = w / w.norm()
    return v


for _ in range(2):
    basis()
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(turns):
    v = basis()
torch.cuda.synchronize()
ms = 1e3 * (time.perf_counter() - begin) / turns
off = (v @ v.T - torch.eye(vectors).to(v)).abs().max().item()
print(f"{ms:.3f} ms each, result {v.sum().item():.5g}, orthogonal to {off:.1e}")
