"""`measure=True`: the fastest kernel for a product by timing, and the choices kept in memory and in a file."""
