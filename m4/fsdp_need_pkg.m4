# SYNOPSIS
#
#   FSDP_NEED_PKG([NAME], [module], [least version], [Debian package])
#
# DESCRIPTION
#
#   A library that nothing is built without.  Sets NAME_CFLAGS, NAME_LIBS and
#   NAME_VERSION.

AC_DEFUN([FSDP_NEED_PKG], [
    PKG_CHECK_MODULES([$1], [$2 >= $3], [],
        [AC_MSG_ERROR([$2 $3 or later not found (Debian: $4)])])
    $1_VERSION=`$PKG_CONFIG --modversion "$2"`
])
