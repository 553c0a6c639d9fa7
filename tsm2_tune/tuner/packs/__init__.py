"""Packs: a device's fastest kernels with their measured times, and the choice that an exported module makes of them.

`tuner/export/store_pack.py` builds a pack from a database of trials.
"""
