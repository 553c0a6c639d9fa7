"""Output of the commands: tables, progress and remaining time on a terminal, and events as JSON for programs.

The HTML report uses it too. No module of this package tunes or stores anything.
"""
