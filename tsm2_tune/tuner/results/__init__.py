"""Results: the records of trials and times, the database that holds them, and putting databases together."""
