"""The half with side effects: compile, verify, measure, store, export."""
