"""Import trials from other databases and from texts into a database."""
