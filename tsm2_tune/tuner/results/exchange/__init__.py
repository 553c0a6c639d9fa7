"""Read and write other autotuners' formats: the trials of one problem on one device."""
