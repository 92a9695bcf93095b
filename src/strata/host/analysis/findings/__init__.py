"""What is wrong on a host, one function a detector, each pure: a `View` in, findings out."""
