"""The commands: each has a module of its own name (`import_.py` for `import`, which is a keyword).

`results/` has the commands that show and change a database of trials. `options.py` has options that several commands
share, `errors.py` prints errors, `completion.py` completes words in a shell. Commands call `api` and print through
`console`. `cli.py` imports them by name; nothing else does.
"""
