"""The measurements behind the README's tables, one command each. They need a GPU."""
