"""Probes of what tuning needs: whether it is here, how that affects results, and the remedy."""
