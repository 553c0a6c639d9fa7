"""Times of kernels: of one kernel, of several in turns, and of the vendor's libraries."""
