# shellcheck shell=sh
# Sourced by sharness.sh: ranks on this machine, under mpirun.

if have MPI && command -v mpirun >/dev/null; then
	test_set_prereq MPI
fi

# Open MPI refuses root, and more ranks than cores, unless told otherwise.
OMPI_ALLOW_RUN_AS_ROOT=1
OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
OMPI_MCA_rmaps_base_oversubscribe=1
OMPI_MCA_hwloc_base_binding_policy=none
# Not every machine lets processes read each other's memory.
OMPI_MCA_btl_vader_single_copy_mechanism=none
OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM \
	OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_hwloc_base_binding_policy \
	OMPI_MCA_btl_vader_single_copy_mechanism OMP_NUM_THREADS

# mpirun_np N COMMAND...: N ranks, at most $MPIRUN_TIMEOUT seconds (120).
mpirun_np() {
	n=$1
	shift
	run_timeout "${MPIRUN_TIMEOUT:-120}" mpirun -np "$n" "$@" </dev/null
}
