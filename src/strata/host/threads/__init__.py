"""Which thread is which: live threads in the pools of a training job, and those pools in layers."""
