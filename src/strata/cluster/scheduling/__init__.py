"""Where a gang goes: the router, on an index of the cluster in arrays. Pure, and without Kubernetes.

A `claim` is converted into devices of each model (`conversion`), scored on every row of the `index` it may go to
(`eligibility`, `scoring`, `shape`), and placed as a whole (`gang`, `fraction`). `evaluation` chooses among the
models, `explain` says why, for every node.
"""
