"""The measurements behind the tables in docs, one command each. They need a GPU."""
