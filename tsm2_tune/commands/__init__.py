"""The commands, one module each; `cli.py` lists them. They call `api` and print through `console`."""
