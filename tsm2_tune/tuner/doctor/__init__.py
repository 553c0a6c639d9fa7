"""The doctor: probe what tuning needs, and report what is missing, the effect on results, and the remedy.

`examination.py` runs all probes; the other modules have a probe or several each. `finding.py` is a probe's result.
"""
