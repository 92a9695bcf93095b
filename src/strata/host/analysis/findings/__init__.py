"""What is wrong on a host, one function a detector, each pure: a `TraceView` in, findings out."""
