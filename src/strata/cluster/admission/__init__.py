"""The webhook: what is injected into pods and jobs on CREATE, and the server that answers for it."""
