"""What only measures: KPIs, published runs, testbed, faults, bodies of benchmarks. Rooms import none of it."""
