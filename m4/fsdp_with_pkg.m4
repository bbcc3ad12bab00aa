# SYNOPSIS
#
#   FSDP_WITH_PKG([name], [NAME], [module], [what for], [Debian package])
#
# DESCRIPTION
#
#   --with-NAME[=DIR|no|check]: a feature that pkg-config knows as MODULE, in
#   DIR if one is given.  Asked for and missing is an error.  Sets
#   NAME_CFLAGS, NAME_LIBS, NAME_VERSION, have_NAME and HAVE_NAME, for config.h
#   (0 or 1) and as a conditional.

AC_DEFUN([FSDP_WITH_PKG], [
    AC_ARG_WITH([$1],
        [AS_HELP_STRING([--with-$1@<:@=DIR|no|check@:>@],
            [$4 @<:@default=check@:>@])],
        [], [with_$1=check])
    have_$1=no
    $2_VERSION=no
    AS_IF([test "x$with_$1" != xno], [
        save_PKG_CONFIG_PATH=$PKG_CONFIG_PATH
        AS_CASE([$with_$1],
            [/*], [PKG_CONFIG_PATH=$with_$1/lib/pkgconfig:$with_$1/lib64/pkgconfig:$PKG_CONFIG_PATH
                export PKG_CONFIG_PATH],
            [yes|check], [],
            [AC_MSG_ERROR([--with-$1=$with_$1: not an absolute path])])
        PKG_CHECK_MODULES([$2], [$3], [
            have_$1=yes
            $2_VERSION=`$PKG_CONFIG --modversion "$3"`
        ], [
            AS_IF([test "x$with_$1" != xcheck],
                [AC_MSG_ERROR([--with-$1: $$2_PKG_ERRORS (Debian: $5)])])
        ])
        PKG_CONFIG_PATH=$save_PKG_CONFIG_PATH
    ])
    AS_IF([test $have_$1 = yes], [value=1], [value=0])
    AC_DEFINE_UNQUOTED([HAVE_$2], [$value], [$4: 1 if it is there.])
    AM_CONDITIONAL([HAVE_$2], [test $have_$1 = yes])
])
