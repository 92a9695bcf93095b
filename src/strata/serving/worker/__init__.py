"""A node that hosts layers of a small real transformer, and passes activations on."""
