"""Import trials from other databases and from texts of trials into a database."""
