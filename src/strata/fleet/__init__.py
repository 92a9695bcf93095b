"""What there is: accelerators, domains, links and how they change.

`schema` reads a fleet file into a `fleet.Fleet` of domains and links, filling what the file leaves out from
`catalogue` and saying how far each figure can be trusted; `acu` says what one card is worth in another.
`dynamics` moves links in time. Below the data centre, a node's agent keeps a `fingerprint` of its devices
(`local`, `nvml`, `topology`), `health` and `isolation` judge them, and `slices` and `ledger` are how fractions
of a device are written down and counted.

Planners, simulators and the cluster read from here; nothing here knows what runs on it.
"""
