"""The page that `tsm2-tune report` writes: what is read of a database, what is drawn of it, and how it looks."""
