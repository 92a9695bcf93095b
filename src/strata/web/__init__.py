"""The dashboard: reads decisions and snapshots, draws them, and asks the planner again; decides nothing itself.

`sources` says where figures come from, `app` has the routes, `pages` renders the templates, `static` the one style
and the one script. Pages are rendered here and read without a script; the script only keeps them fresh and lets
sliders move. Nothing is loaded from elsewhere. `report` writes the same pictures into one file.
"""
