# SYNOPSIS
#
#   FSDP_WITH_DNNL
#
# DESCRIPTION
#
#   --with-dnnl[=DIR|no|check]: matrix products by oneDNN; without it plain
#   loops are used.  Sets DNNL_CFLAGS, DNNL_LIBS, DNNL_VERSION and HAVE_DNNL.

AC_DEFUN([FSDP_WITH_DNNL], [
    AC_ARG_WITH([dnnl],
        [AS_HELP_STRING([--with-dnnl@<:@=DIR|no|check@:>@],
            [matrix products by oneDNN @<:@default=check@:>@])],
        [], [with_dnnl=check])
    have_dnnl=no
    DNNL_VERSION=no DNNL_CFLAGS= DNNL_LIBS=
    AS_IF([test "x$with_dnnl" != xno], [
        AS_CASE([$with_dnnl],
            [/*], [
                DNNL_CFLAGS="-I$with_dnnl/include"
                DNNL_LIBS="-L$with_dnnl/lib"],
            [yes|check], [],
            [AC_MSG_ERROR([--with-dnnl=$with_dnnl: not an absolute path])])
        save_CPPFLAGS=$CPPFLAGS save_LIBS=$LIBS
        CPPFLAGS="$CPPFLAGS $DNNL_CFLAGS"
        LIBS="$DNNL_LIBS -ldnnl $LIBS"
        AC_CACHE_CHECK([for oneDNN 2.x], [fsdp_cv_dnnl],
            [AC_LINK_IFELSE([AC_LANG_PROGRAM([[#include <dnnl.h>]],
                [[dnnl_matmul_desc_t d; return dnnl_version() == 0 || sizeof d == 0;]])],
                [fsdp_cv_dnnl=yes], [fsdp_cv_dnnl=no])])
        AS_IF([test $fsdp_cv_dnnl = yes], [
            have_dnnl=yes
            DNNL_LIBS="$DNNL_LIBS -ldnnl"
            FSDP_HEADER_VERSION([DNNL_VERSION], [dnnl.h],
                [DNNL_VERSION_MAJOR], [DNNL_VERSION_MINOR],
                [DNNL_VERSION_PATCH])
        ], [test "x$with_dnnl" != xcheck],
            [AC_MSG_ERROR([--with-dnnl: dnnl.h of oneDNN 2.x or libdnnl not found (Debian: libdnnl-dev)])],
            [DNNL_CFLAGS= DNNL_LIBS=])
        CPPFLAGS=$save_CPPFLAGS LIBS=$save_LIBS
    ])
    AS_IF([test $have_dnnl = yes], [value=1], [value=0])
    AC_DEFINE_UNQUOTED([HAVE_DNNL], [$value], [oneDNN: 1 if it is there.])
    AM_CONDITIONAL([HAVE_DNNL], [test $have_dnnl = yes])
    AC_SUBST([DNNL_CFLAGS])
    AC_SUBST([DNNL_LIBS])
])
