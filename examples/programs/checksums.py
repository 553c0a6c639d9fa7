"""Checksums of a large matrix for a product that notices faults (ABFT), in PyTorch: two sums of its rows and columns.

python checksums.py [SIDE TURNS]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

side, turns = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (20480, 50)
torch.manual_seed(0)
a = torch.randn(side, side, device="cuda", dtype=torch.float64)
weights = torch.stack((torch.ones(side), torch.arange(1, side + 1) / side), 1).to(a)  # which fault, and where


def checksums() -> tuple[torch.Tensor, torch.Tensor]:
    """Of the rows, and of the columns."""
    return a @ weights, weights.T @ a


for _ in range(5):
    checksums()
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(turns):
    rows, columns = checksums()
torch.cuda.synchronize()
print(
    f"{1e3 * (time.perf_counter() - begin) / turns:.3f} ms both, result {(rows.norm() + columns.norm()).item():.8g}"
)
