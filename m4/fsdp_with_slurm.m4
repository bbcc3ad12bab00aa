# SYNOPSIS
#
#   FSDP_WITH_SLURM
#
# DESCRIPTION
#
#   --with-slurm[=DIR|no|check]: Slurm's programs, for the tests and the demo,
#   which run on a private cluster.  Sets SLURM_VERSION and HAVE_SLURM.

AC_DEFUN([FSDP_WITH_SLURM], [
    AC_ARG_WITH([slurm],
        [AS_HELP_STRING([--with-slurm@<:@=DIR|no|check@:>@],
            [test on a private Slurm cluster @<:@default=check@:>@])],
        [], [with_slurm=check])
    have_slurm=no
    SLURM_VERSION=no
    AS_IF([test "x$with_slurm" != xno], [
        slurm_path=$PATH:/usr/sbin:/sbin
        AS_CASE([$with_slurm],
            [/*], [slurm_path=$with_slurm/bin:$with_slurm/sbin],
            [yes|check], [],
            [AC_MSG_ERROR([--with-slurm=$with_slurm: not an absolute path])])
        AC_PATH_PROG([SLURMCTLD], [slurmctld], [], [$slurm_path])
        AC_PATH_PROG([SRUN], [srun], [], [$slurm_path])
        AS_IF([test -n "$SLURMCTLD" && test -n "$SRUN"], [
            have_slurm=yes
            # srun wants a configured cluster before it says its version.
            SLURM_VERSION=`$SLURMCTLD -V 2>/dev/null | $AWK '{print $NF}'`
            AS_IF([test -z "$SLURM_VERSION"], [SLURM_VERSION=yes])
        ], [test "x$with_slurm" != xcheck],
            [AC_MSG_ERROR([--with-slurm: slurmctld or srun not found (Debian: slurm-wlm)])])
    ])
    AM_CONDITIONAL([HAVE_SLURM], [test $have_slurm = yes])
])
