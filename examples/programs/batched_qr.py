"""The QR decompositions of many small tall matrices by two steps of CholeskyQR, in PyTorch.

python batched_qr.py [MATRICES ROWS COLUMNS TURNS]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

matrices, rows, columns, turns = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (8192, 100, 10, 50)
torch.manual_seed(0)
x = torch.randn(matrices, rows, columns, device="cuda", dtype=torch.float64)
identity = torch.eye(columns).to(x).expand(matrices, columns, columns)


def cholesky_qr(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Q and R of one step: R of X^T X, and Q = X / R."""
    r = torch.linalg.cholesky(torch.bmm(x.mT, x)).mT
    inverse = torch.linalg.solve_triangular(r, identity, upper=True)
    return torch.bmm(x, inverse), r


def decomposed() -> tuple[torch.Tensor, torch.Tensor]:
    """Q and R of two steps, after which Q is orthogonal to the last bits."""
    q, first = cholesky_qr(x)
    q, second = cholesky_qr(q)
    return q, torch.bmm(second, first)


for _ in range(5):
    decomposed()
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(turns):
    q, r = decomposed()
torch.cuda.synchronize()
ms = 1e3 * (time.perf_counter() - begin) / turns
off = (q.mT @ q - identity).abs().max().item()
print(f"{ms:.3f} ms each, result {r.abs().sum().item():.8g}, Q is orthogonal to {off:.1e}")
