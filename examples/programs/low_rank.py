"""A low-rank approximation by `torch.svd_lowrank`, or by `torch.pca_lowrank`, as it is.

python low_rank.py [SIDE RANK TURNS [pca]]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

side, rank, turns = map(int, sys.argv[1:4]) if len(sys.argv) > 1 else (20480, 8, 10)
approximate = torch.pca_lowrank if sys.argv[4:] == ["pca"] else torch.svd_lowrank
torch.manual_seed(0)
a = torch.randn(side, 64, device="cuda") @ torch.randn(64, side, device="cuda")


def approximated() -> torch.Tensor:
    """The largest singular values."""
    torch.manual_seed(1)
    return approximate(a, q=rank, niter=2)[1]


for _ in range(5):
    approximated()
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(turns):
    values = approximated()
torch.cuda.synchronize()
print(f"{1e3 * (time.perf_counter() - begin) / turns:.3f} ms each, result {values.sum().item():.5g}")
