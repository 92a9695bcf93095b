"""What accelerators this machine has: vendors' tools, NVML and sysfs asked, their answers made one fingerprint.

`collect` asks all of them, through `tools`, which lets none take the caller down with it. Each vendor's module
reads what its tool writes (`table` reads tables made for people) into `observation.Found`, or refuses it whole.
The node agent of `cluster` publishes what comes out.
"""
