"""The Python API: what the commands do, as functions that take and return records. `tsm2_tune` exports its names."""
