"""The HTML page that `tsm2-tune report` writes.

`contents.py` reads databases, a module for each section makes charts and tables, and `page.py` puts them together.
"""
