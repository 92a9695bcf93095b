"""The bodies of `strata bench`: one module a benchmark, whose `measure` returns what `-o json` prints.

The command line parses options, calls `measure` with its progress bar, and renders the returned data; it
imports a module of this package only when its command runs.
"""
