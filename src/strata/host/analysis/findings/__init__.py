"""What is wrong on a host, one detector a file; each is a pure function of a `View`."""
