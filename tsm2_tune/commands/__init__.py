"""The commands, most in a module of their own name.

`results.py` has `best` and `show`, `plan.py` `space`, `model`, `source` and `devices`, `programs.py` `run` and
`record`. They call `api` and print through `console`. `cli.py` imports them by name; nothing else does.
"""
