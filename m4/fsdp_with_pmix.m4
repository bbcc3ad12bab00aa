# SYNOPSIS
#
#   FSDP_WITH_PMIX
#
# DESCRIPTION
#
#   --with-pmix[=DIR|no|check]: find the ranks of a job through PMIx.  Sets PMIX_CFLAGS, PMIX_LIBS, PMIX_VERSION and
#   HAVE_PMIX, for config.h (0 or 1) and as a conditional.

AC_DEFUN([FSDP_WITH_PMIX], [
    AC_ARG_WITH([pmix],
        [AS_HELP_STRING([--with-pmix@<:@=DIR@:>@],
            [find the ranks of a job through PMIx @<:@default=check@:>@])],
        [], [with_pmix=check])
    have_pmix=no
    PMIX_VERSION=no
    AS_IF([test "x$with_pmix" != xno], [
        AS_CASE([$with_pmix], [/*], [
            PKG_CONFIG_PATH="$with_pmix/lib/pkgconfig:$PKG_CONFIG_PATH"
            export PKG_CONFIG_PATH])
        PKG_CHECK_MODULES([PMIX], [pmix], [
            have_pmix=yes
            PMIX_VERSION=`$PKG_CONFIG --modversion "pmix"`
        ], [
            AS_IF([test "x$with_pmix" != xcheck],
                [AC_MSG_ERROR([--with-pmix: $PMIX_PKG_ERRORS])])
        ])
    ])
    AS_IF([test $have_pmix = yes], [value=1], [value=0])
    AC_DEFINE_UNQUOTED([HAVE_PMIX], [$value], [find the ranks of a job through PMIx: 1 if it is there.])
    AM_CONDITIONAL([HAVE_PMIX], [test $have_pmix = yes])
])
