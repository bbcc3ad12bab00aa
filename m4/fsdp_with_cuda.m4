# SYNOPSIS
#
#   FSDP_WITH_CUDA
#
# DESCRIPTION
#
#   --with-cuda[=DIR|no|check]: look for nvcc; the GPU backends are built
#   with it.  Sets NVCC, CUDA_VERSION and HAVE_CUDA.

AC_DEFUN([FSDP_WITH_CUDA], [
    AC_ARG_WITH([cuda],
        [AS_HELP_STRING([--with-cuda@<:@=DIR|no|check@:>@],
            [find the CUDA toolkit, for GPU ranks @<:@default=check@:>@])],
        [], [with_cuda=check])
    have_cuda=no
    CUDA_VERSION=no
    AS_IF([test "x$with_cuda" != xno], [
        cuda_path=$PATH:/usr/local/cuda/bin
        AS_CASE([$with_cuda],
            [/*], [cuda_path=$with_cuda/bin],
            [yes|check], [],
            [AC_MSG_ERROR([--with-cuda=$with_cuda: not an absolute path])])
        AC_PATH_PROG([NVCC], [nvcc], [], [$cuda_path])
        AS_IF([test -n "$NVCC"], [
            have_cuda=yes
            CUDA_VERSION=`$NVCC --version | sed -n 's/.*release \([[0-9.]]*\).*/\1/p'`
        ], [test "x$with_cuda" != xcheck],
            [AC_MSG_ERROR([--with-cuda: nvcc not found in $cuda_path (Debian non-free: nvidia-cuda-toolkit)])])
    ])
    AM_CONDITIONAL([HAVE_CUDA], [test $have_cuda = yes])
])
