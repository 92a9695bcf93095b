"""Launch scripts of serving engines, one a node of a plan: `launch` has what `vllm` and `sglang` share."""
