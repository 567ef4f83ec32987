"""Collective algorithms, written with the public language only. Each function returns a Program."""
