"""The commands of `tsm2-tune`. Each module is named after its command, except `import_.py`: `import` is a keyword.

`results/` contains the commands that show and change a tuning database. `options.py` contains options that several
commands share, `errors.py` prints errors, and `completion.py` completes words in a shell. Commands call `api` and
print through `console`. Only `cli.py` imports the commands.
"""
