# SYNOPSIS
#
#   FSDP_WITH_MPI
#
# DESCRIPTION
#
#   --with-mpi[=DIR|no|check]: carry the data of CPU ranks over Open MPI.  Sets MPI_CFLAGS, MPI_LIBS, MPI_VERSION and
#   HAVE_MPI, for config.h (0 or 1) and as a conditional.

AC_DEFUN([FSDP_WITH_MPI], [
    AC_ARG_WITH([mpi],
        [AS_HELP_STRING([--with-mpi@<:@=DIR@:>@],
            [carry the data of CPU ranks over Open MPI @<:@default=check@:>@])],
        [], [with_mpi=check])
    have_mpi=no
    MPI_VERSION=no
    AS_IF([test "x$with_mpi" != xno], [
        AS_CASE([$with_mpi], [/*], [
            PKG_CONFIG_PATH="$with_mpi/lib/pkgconfig:$PKG_CONFIG_PATH"
            export PKG_CONFIG_PATH])
        PKG_CHECK_MODULES([MPI], [ompi-c], [
            have_mpi=yes
            MPI_VERSION=`$PKG_CONFIG --modversion "ompi-c"`
        ], [
            AS_IF([test "x$with_mpi" != xcheck],
                [AC_MSG_ERROR([--with-mpi: $MPI_PKG_ERRORS])])
        ])
    ])
    AS_IF([test $have_mpi = yes], [value=1], [value=0])
    AC_DEFINE_UNQUOTED([HAVE_MPI], [$value], [carry the data of CPU ranks over Open MPI: 1 if it is there.])
    AM_CONDITIONAL([HAVE_MPI], [test $have_mpi = yes])
])
