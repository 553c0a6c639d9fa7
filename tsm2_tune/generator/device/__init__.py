"""Properties of devices that can be computed without a GPU driver: limits, occupancy and rooflines.

`cards.py` contains the limits of some GPUs, `occupancy.py` computes resident blocks, and `roofline.py` computes the
least time of a problem. `tuner/device` queries the devices of the machine on which the program runs.
"""
