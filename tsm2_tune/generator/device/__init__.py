"""Facts of devices, without a driver: limits of cards, occupancy, rooflines."""
