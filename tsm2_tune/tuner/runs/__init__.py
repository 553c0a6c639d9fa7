"""Runs: problems tuned on one device or several, in one process or many, on one database."""
