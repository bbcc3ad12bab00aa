# A job to copy; the private cluster is for the tree's own use.
dist_example_DATA += slurm/train.sbatch

EXTRA_DIST += \
	slurm/README.md \
	slurm/cluster
# End of EXTRA_DIST
