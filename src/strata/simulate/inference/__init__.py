"""What serving costs: seconds of layers and hops, KV memory, and how measurements correct both."""
