"""MultiKueue: which worker clusters a workload is offered to, and in which order; Kueue does the rest."""
