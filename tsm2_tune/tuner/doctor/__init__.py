"""The command `doctor`: `examination.py` runs all probes, and each of the other modules has probes of one subject."""
