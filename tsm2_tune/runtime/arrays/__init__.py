"""Read arrays of any library as matrices in memory, and use the streams and allocators of these libraries."""
