"""strata from Python: the commands' answers as typed objects, in a notebook or a program.

`import strata` is light: a name is imported when it is first used. Every function takes files, names of bundled
ones, or the objects that `load_fleet`, `load_job` and `load_serving_job` return, and gives what the command line's
`-o json` prints by `to_dict()`.

    >>> import strata
    >>> answer = strata.plan("seed", "llama-3.1-8b", baselines=False)
    >>> answer.best.plan.domains
    ('East_DataCenter', 'Central_DataCenter')

The command line stands on the same functions: `strata explain`, `whatif` and `simulate` are these with a table.
"""
