"""Packs: kernels with their measured times, and the choice among them that an exported module would make.

`pretuned/` has the texts that the package brings, `tuner/export/store_pack.py` makes a pack of winners.
"""
