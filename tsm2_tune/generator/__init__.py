"""The pure half: from a problem and a device's limits to CUDA text. No GPU, no clock, no disk."""
