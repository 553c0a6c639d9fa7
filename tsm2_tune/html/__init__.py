"""The HTML page of `tsm2-tune report`: a module for each section, which `page.py` joins."""
