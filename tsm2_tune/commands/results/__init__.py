"""The commands that show and change a tuning database."""
