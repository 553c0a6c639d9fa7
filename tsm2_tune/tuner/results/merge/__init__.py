"""Trials of other databases and of texts -> the database."""
