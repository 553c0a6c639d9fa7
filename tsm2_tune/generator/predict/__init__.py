"""Models of a kernel's time, by which searches order configurations."""
