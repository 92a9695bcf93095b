"""Hi-PPO: a learned scheduler of two levels, between domains and inside each.

`plan` answers `strata plan train --planner hi-ppo`: `global_agent` takes candidate plans from the shortlist, shows
them to a `policy` as `features`, and the `guard` refuses a pick in which the exact model sees only loss;
`explanation` says why it was picked. Inside a domain, `local_agent` decides between bindings of devices
(`binding`, `assignment`, `placement`, `candidates`) on the state of its devices (`domain_state`, `outlook`);
`coordinator` asks both levels and respects what `capacity` domains report. Policies are trained in
`strata.learning`.
"""
