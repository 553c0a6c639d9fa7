"""Maintenance of a database: check it, remove unused rows, migrate it. The commands of `tsm2-tune db` call these."""
