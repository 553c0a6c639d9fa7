"""K-means by Lloyd's algorithm, in PyTorch.

python kmeans.py [POINTS DIMENSIONS CENTRES ITERATIONS]
"""

import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

points, dimensions, centres, iterations = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (200_000, 4096, 16, 100)
torch.manual_seed(0)
x = torch.randn(points, dimensions, device="cuda")
means = x[:centres].clone()


def iterated(means: torch.Tensor) -> torch.Tensor:
    """The means of the points that are nearest to each of these."""
    closeness = x @ means.T - 0.5 * (means * means).sum(1)
    nearest = torch.nn.functional.one_hot(closeness.argmax(1), centres).to(x.dtype)
    return (nearest.T @ x) / nearest.sum(0).clamp(min=1)[:, None]


for _ in range(5):
    iterated(means)
torch.cuda.synchronize()
begin = time.perf_counter()
for _ in range(iterations):
    means = iterated(means)
torch.cuda.synchronize()
print(f"{1e3 * (time.perf_counter() - begin) / iterations:.3f} ms an iteration, result {means.norm().item():.5g}")
