"""How Hi-PPO's policies are trained and examined; what they decide with in production is `training/hi_ppo`.

`strata learn train` loads a recipe (`schema`) and calls `learner.learn`: it first imitates exact solutions
(`imitation`), then plays episodes of the `curriculum` on workers (`workers`) and improves the `network` by `ppo`.
Episodes come from reward tables (`tables`) and simulated fleets (`worlds`); both show the same `Options` as a real
fleet does. After every round the policy is examined on held-out episodes and kept in a `checkpoint`, from which
`export` writes the ONNX file that `training/hi_ppo/policy` loads, with the `record` of its training beside it.

This package is above the schedulers and imports them; none of them imports it.
"""
