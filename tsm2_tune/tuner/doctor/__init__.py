"""The command `doctor`: check everything that tuning needs, and report problems, their effects and their remedies.

`examination.py` runs all probes, the functions that check one thing each. The other modules contain the probes.
`finding.py` defines a probe's input and result.
"""
