"""The commands that show and change a database of trials."""
