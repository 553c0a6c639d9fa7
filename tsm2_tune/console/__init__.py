"""Output of the commands: tables and progress on a terminal, and events as JSON. It tunes and stores nothing."""
