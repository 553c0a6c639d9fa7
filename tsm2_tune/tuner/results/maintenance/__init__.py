"""Looking after a database: whether it is sound, what nothing needs, and schemas of older versions."""
