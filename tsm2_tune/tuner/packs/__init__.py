"""Packs: kernels with their measured times, and the choice among them that an exported module would make.

`pretuned/` has the texts that the package contains. `tuner/export/store_pack.py` makes a pack from winners.
"""
