"""The process that owns the device: `client.py` asks, `server.py` answers, `protocol.py` has the messages.

A kernel that faults or hangs ends this process and not the run.
"""
