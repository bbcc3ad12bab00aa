# SYNOPSIS
#
#   FSDP_HEADER_VERSION([VARIABLE], [header], [MAJOR], [MINOR], [PATCH])
#
# DESCRIPTION
#
#   Set VARIABLE to the version that a header's three macros give, or to "yes"
#   if they cannot be read.  Nothing is run.

AC_DEFUN([FSDP_HEADER_VERSION], [
    $1=yes
    AC_COMPUTE_INT([version_major], [$3], [#include <$2>], [version_major=])
    AC_COMPUTE_INT([version_minor], [$4], [#include <$2>], [version_major=])
    AC_COMPUTE_INT([version_patch], [$5], [#include <$2>], [version_major=])
    AS_IF([test -n "$version_major"],
        [$1=$version_major.$version_minor.$version_patch])
])
