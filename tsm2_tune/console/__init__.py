"""Text for a terminal, and events as JSON for programs: tables, progress, time left. Nothing here tunes or stores."""
