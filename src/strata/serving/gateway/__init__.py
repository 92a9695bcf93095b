"""The gateway: OpenAI-compatible requests in, attempts on nodes out; one `Core` a model decides."""
