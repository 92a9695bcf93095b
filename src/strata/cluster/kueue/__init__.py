"""Kueue: admission checks answered by the router, and the ResourceFlavors that go with the runtime profiles."""
