# SYNOPSIS
#
#   FSDP_COMPILE_FLAGS
#
# DESCRIPTION
#
#   Set FSDP_CFLAGS to the project's own compiler flags; the user's CFLAGS are
#   left alone.  --enable-werror turns warnings into errors.

AC_DEFUN([FSDP_COMPILE_FLAGS], [
    AC_ARG_ENABLE([werror],
        [AS_HELP_STRING([--enable-werror], [treat warnings as errors])],
        [], [enable_werror=no])
    FSDP_CFLAGS=
    # The same bits whatever the compiler would like to fuse.
    AX_APPEND_COMPILE_FLAGS([-std=gnu11 -ffp-contract=off -fvisibility=hidden \
        -fno-math-errno -fno-trapping-math \
        -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes \
        -Wpointer-arith -Wwrite-strings -Wvla], [FSDP_CFLAGS], [-Werror])
    AX_APPEND_COMPILE_FLAGS([-Wno-missing-field-initializers], [FSDP_CFLAGS],
        [-Werror])
    FSDP_CFLAGS=${FSDP_CFLAGS# }
    AS_IF([test "x$enable_werror" = xyes],
        [FSDP_CFLAGS="$FSDP_CFLAGS -Werror"])
    AC_SUBST([FSDP_CFLAGS])
])
