# SYNOPSIS
#
#   FSDP_WITH_NCCL
#
# DESCRIPTION
#
#   --with-nccl[=DIR|no|check]: look for nccl.h; the GPU backends are built
#   with it.  Sets NCCL_CFLAGS, NCCL_VERSION and HAVE_NCCL.

AC_DEFUN([FSDP_WITH_NCCL], [
    AC_ARG_WITH([nccl],
        [AS_HELP_STRING([--with-nccl@<:@=DIR|no|check@:>@],
            [find NCCL, for GPU ranks @<:@default=check@:>@])],
        [], [with_nccl=check])
    have_nccl=no
    NCCL_VERSION=no NCCL_CFLAGS=
    AS_IF([test "x$with_nccl" != xno], [
        # nccl.h includes a header of CUDA.
        AS_IF([test -n "$NVCC"],
            [NCCL_CFLAGS="-I`AS_DIRNAME(["$NVCC"])`/../include"])
        AS_CASE([$with_nccl],
            [/*], [NCCL_CFLAGS="-I$with_nccl/include $NCCL_CFLAGS"],
            [yes|check], [],
            [AC_MSG_ERROR([--with-nccl=$with_nccl: not an absolute path])])
        save_CPPFLAGS=$CPPFLAGS
        CPPFLAGS="$CPPFLAGS $NCCL_CFLAGS"
        AC_CHECK_HEADER([nccl.h], [
            have_nccl=yes
            FSDP_HEADER_VERSION([NCCL_VERSION], [nccl.h],
                [NCCL_MAJOR], [NCCL_MINOR], [NCCL_PATCH])
        ], [AS_IF([test "x$with_nccl" != xcheck],
            [AC_MSG_ERROR([--with-nccl: nccl.h not found (Debian non-free: libnccl-dev)])],
            [NCCL_CFLAGS=])])
        CPPFLAGS=$save_CPPFLAGS
    ])
    AM_CONDITIONAL([HAVE_NCCL], [test $have_nccl = yes])
    AC_SUBST([NCCL_CFLAGS])
])
