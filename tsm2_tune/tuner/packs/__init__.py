"""Packs: kernels with their measured times, and the choice among them that an exported module would make."""
