"""Observed state: what a host is. Facts neither decide nor change anything."""
