"""The deformation of a mesh: each point is moved by a 3 x 3 matrix of its own, in PyTorch.

python deformed_mesh.py [POINTS TURNS]
"""

import math
import sys
import time

try:
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"this program needs PyTorch ({error}): pip install torch")

points, turns = map(int, sys.argv[1:]) if len(sys.argv) > 1 else (2_000_000, 100)
torch.manual_seed(0)
at = torch.rand(points, 3, device="cuda")
axes = torch.nn.functional.normalize(torch.rand(points, 3, device="cuda") - 0.5, dim=1)
zero = torch.zeros(points, device="cuda")
x, y, z = axes.unbind(1)
skew = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(points, 3, 3)
identity = torch.eye(3, device="cuda")


def deformed(angle: float) -> torch.Tensor:
    """The points, each rotated by the angle about its own axis: Rodrigues' formula."""
    squared = torch.bmm(skew, skew)
    rotations = identity + math.sin(angle) * skew + (1 - math.cos(angle)) * squared
    return torch.bmm(rotations, at.unsqueeze(2)).squeeze(2)


for _ in range(5):
    deformed(0.1)
torch.cuda.synchronize()
begin = time.perf_counter()
for turn in range(turns):
    moved = deformed(0.1 + 0.01 * turn)
torch.cuda.synchronize()
ms = 1e3 * (time.perf_counter() - begin) / turns
lengths = (moved.norm(dim=1) - at.norm(dim=1)).abs().max().item()
print(f"{ms:.3f} ms each, result {moved.abs().sum().item():.8g}, lengths change by {lengths:.1e}")
