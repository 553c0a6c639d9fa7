"""What the command does, as functions: records in, records out. `tsm2_tune` has their names."""
