EXTRA_DIST += slurm/cluster
