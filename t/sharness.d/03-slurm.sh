# shellcheck shell=sh
# Sourced by sharness.sh: a private Slurm cluster for a test file.

if test_have_prereq ROOT && have PMIX && have MPI &&
	command -v slurmctld >/dev/null && command -v srun >/dev/null &&
	unshare -m -n -u -i -p --fork true 2>/dev/null; then
	test_set_prereq SLURM
fi

# cluster_up [OPTION]...: start one (options as of slurm/cluster up) in a
# directory of its own, whose name is short enough for sockets, and stop it
# when the file ends.  Sets CLUSTER_DIR, which slurm/cluster reads.
cluster_up() {
	CLUSTER_DIR=$(mktemp -d /tmp/fsdp-t.XXXXXX) || return
	export CLUSTER_DIR
	at_exit cluster_down
	run_timeout 90 "$FSDP_SRCDIR/slurm/cluster" up -t 60 \
		-o SlurmdTimeout=60 "$@" </dev/null
}

# cluster VERB [ARG]...: as slurm/cluster, with a deadline of 120 s, or
# $CLUSTER_TIMEOUT.
cluster() {
	run_timeout "${CLUSTER_TIMEOUT:-120}" "$FSDP_SRCDIR/slurm/cluster" "$@" \
		</dev/null
}

# in_cluster COMMAND...: run it on the login node.
in_cluster() {
	cluster run "$@"
}

# May be called twice.
cluster_down() {
	test -n "$CLUSTER_DIR" || return 0
	"$FSDP_SRCDIR/slurm/cluster" down
	rm -rf "$CLUSTER_DIR"
	CLUSTER_DIR=
}
