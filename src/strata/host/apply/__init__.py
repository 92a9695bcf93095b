"""Takes the steps of a plain-kernel policy, so that each can be taken back."""
