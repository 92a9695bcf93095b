"""Keep the plan in use or switch: the `options` of a decision, the fixed `rules`, and what switching costs.

`response` answers how long plans take under any state of the links, `relocation` what moving weights takes.
Rules and learned policies decide on the same `Options`, on a real fleet as in `strata.learning`'s episodes.
"""
