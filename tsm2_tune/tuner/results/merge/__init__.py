"""Import trials into a database, from another database or from a text file."""
