"""Text for a terminal, and events as JSON for programs: tables, progress, remaining time.

Commands use it, and the report its columns of winners. Nothing here tunes or stores.
"""
