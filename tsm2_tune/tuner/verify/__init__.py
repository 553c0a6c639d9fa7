"""Verification of a kernel: its operands, the calls that it must pass, and the comparison with a reference."""
