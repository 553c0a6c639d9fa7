"""The search of one problem: which configurations are tried, and what each trial came to."""
