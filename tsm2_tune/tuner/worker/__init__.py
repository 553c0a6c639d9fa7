"""The process that owns the device: `client.py` asks, `server.py` answers, `protocol.py` has the messages."""
