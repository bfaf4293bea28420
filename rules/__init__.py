"""Pure decisions: data in, decision out.

Nothing in this package imports pyinfra, opens a file of a host or changes anything; it can be
tested with literal values.
"""
