"""A worker that measures the host's ceilings on little memory and in few turns: tests tell nothing of its rates."""

from __future__ import annotations

from typing import Any

from tsm2_tune.tuner.device.emulator import device
from tsm2_tune.tuner.worker import server

FEW = {"CEILING_BYTES": 1 << 20, "MOST_FLUSH_BYTES": 1 << 20, "CEILING_SAMPLES": 2, "RATE_TURNS": 16}


def serve(*arguments: Any) -> None:
    for name, value in FEW.items():
        setattr(device, name, value)
    server.serve(*arguments)
