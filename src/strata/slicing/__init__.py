"""Slicing: one accelerator, several tenants, a quota that holds.

`run` decides everything about a command in a slice, then turns into it with the library preloaded; `program`
checks first (`elf`) that the command can load a library at all. `build` compiles the library from `native/`, whose
C code interposes the driver's symbols and charges each allocation to the slice's ledger, a file that all its
processes share; `ledger_directory` knows where these files are and which are in use. `fleet.ledger` reads one.
"""
