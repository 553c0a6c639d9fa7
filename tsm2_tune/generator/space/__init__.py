"""Search spaces: tunables, the rules that drop configurations, and the order in which a search tries the rest.

`space.py` enumerates a space, `rules.py` contains the rules, `guidelines.py` contains the thresholds of some rules,
and `order.py` and `seeds.py` decide what a search tries first.
"""
