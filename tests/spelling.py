"""Configurations as tests spell them: as they are printed."""

from __future__ import annotations

from tsm2_tune.generator.config import KernelConfig
from tsm2_tune.generator.families import parse_config


def spelt(text: str) -> KernelConfig:
    """The configuration that is spelt so."""
    config = parse_config(text)
    assert config is not None, f"no configuration is spelt {text}"
    return config
