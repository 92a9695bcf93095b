"""What there is, asked of this machine, of Slurm and of Kubernetes; `fleet_file`: one file from all of it."""
