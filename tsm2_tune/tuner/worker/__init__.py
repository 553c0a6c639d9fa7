"""The worker: the only process that opens the device and launches kernels.

`client.py` sends requests to the worker, `server.py` answers them in the worker, `protocol.py` defines the messages.
A kernel that faults or hangs ends only the worker, not the run.
"""
