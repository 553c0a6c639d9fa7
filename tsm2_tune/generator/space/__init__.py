"""Search spaces: tunables, the rules and guidelines that drop configurations, and the order of the others.

`space.py` enumerates a space, `rules.py` has the reasons to drop, `guidelines.py` the thresholds of some of them, and
`order.py` and `seeds.py` decide what a search tries first.
"""
