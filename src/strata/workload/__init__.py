"""What is asked for: models, jobs, plans and their measured profiles.

`huggingface` turns a `config.json` into a `model.ModelSpec`, `layers` and `profile` into seconds and bytes a
layer; `schema` and `serving_schema` read job files. `plan.TrainingPlan` is what planners return and what
simulators and exporters take. For serving, `inference` lists what each layer stores, caches and computes;
`requests`, `arrivals` and `request_trace` draw or replay what comes.

Like `fleet`, this floor decides nothing: it is the vocabulary of the rooms above.
"""
