"""Arrays of every library as matrices in memory, and the streams and allocators of their libraries."""
