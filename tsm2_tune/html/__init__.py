"""The HTML page that `tsm2-tune report` writes.

`contents.py` reads a database. One module for each section of the page creates its charts and tables. `page.py` joins
the sections.
"""
