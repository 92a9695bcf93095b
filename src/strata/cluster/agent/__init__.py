"""The node agent: what the vendors' tools, sysfs and a short benchmark say of one machine, as one fingerprint."""
