"""Trials of one problem on one device as files of other autotuners, and back."""
