"""Check, clean up and migrate a database: the implementation of the commands `tsm2-tune db ...`."""
