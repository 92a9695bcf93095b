"""What there is: accelerators, domains, links and how they change."""
