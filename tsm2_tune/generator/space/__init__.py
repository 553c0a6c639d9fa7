"""Search spaces: tunables and their values, the rules that drop configurations, and the order of the others."""
