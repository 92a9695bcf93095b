"""Policies of thread layers: the file of scx_layered, and the same policy in words every Linux kernel knows.

`generate` makes the policy from classified threads and the machine, `codec` reads and writes its JSON (`forms`,
`logic` and `text` are its parts), `plain` says it in steps of the plain kernel for `host.apply`, `lint` finds
what scx_layered would take without a word.
"""
