"""The HTML page that `tsm2-tune report` writes: reading a database, drawing charts and tables, and their style."""
