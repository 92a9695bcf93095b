"""What ASTRA-sim's analytical backends would answer, to the nanosecond, without a binary (docs/fidelity.md)."""
