"""Our API group: ComputeNode, RuntimeProfile and ComputeClaim, their definitions, and what is read out of them."""
