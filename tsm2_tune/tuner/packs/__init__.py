"""A device's fastest kernels with their measured times, and the choice that an exported module makes of them.

`exported_kernels.py` contains them as Python objects, which `tuner/export/store_kernels.py` reads from a database of
trials. `core_pack.py` writes them as a pack, the binary file that the core reads.
"""
