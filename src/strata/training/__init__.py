"""Jobs across data centres: `plan/` decides, `export/` launches, `hi_ppo/` learns, `replan/` says when to move."""
