# SYNOPSIS
#
#   FSDP_SANITIZER
#
# DESCRIPTION
#
#   --enable-sanitizer=LIST builds with -fsanitize=LIST, for example
#   address,undefined or thread.

AC_DEFUN([FSDP_SANITIZER], [
    AC_ARG_ENABLE([sanitizer],
        [AS_HELP_STRING([--enable-sanitizer=LIST],
            [build with -fsanitize=LIST (address,undefined or thread)])],
        [], [enable_sanitizer=no])
    AS_IF([test "x$enable_sanitizer" = xyes],
        [enable_sanitizer=address,undefined])
    AS_IF([test "x$enable_sanitizer" != xno], [
        FSDP_CFLAGS="$FSDP_CFLAGS -fsanitize=$enable_sanitizer -fno-omit-frame-pointer -fno-sanitize-recover=undefined"
        FSDP_LDFLAGS="-fsanitize=$enable_sanitizer"
        AC_DEFINE([FSDP_SANITIZED], [1], [Define to 1 in a sanitizer build.])
    ])
    AM_CONDITIONAL([SANITIZED], [test "x$enable_sanitizer" != xno])
    AC_SUBST([FSDP_LDFLAGS])
])
