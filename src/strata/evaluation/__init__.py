"""What only measures: KPIs, published runs, testbed, fault injection, bodies of benchmarks. Rooms import none of it."""
