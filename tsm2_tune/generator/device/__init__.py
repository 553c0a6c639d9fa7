"""Facts of devices, without a driver: limits of cards, occupancy, rooflines.

`cards.py` has bundled cards, `occupancy.py` resident blocks, `roofline.py` the least time of a problem.
`tuner/device` asks real devices.
"""
