"""Files in other autotuners' formats, with the trials of one problem on one device."""
