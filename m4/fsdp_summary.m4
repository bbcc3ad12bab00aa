# SYNOPSIS
#
#   FSDP_SUMMARY
#
# DESCRIPTION
#
#   Print what was found, at the end of configure.

AC_DEFUN([FSDP_SUMMARY], [
    summary_prefix=$prefix
    AS_IF([test "x$prefix" = xNONE], [summary_prefix=$ac_default_prefix])
    AC_MSG_NOTICE([

  $PACKAGE_NAME $PACKAGE_VERSION

  prefix      $summary_prefix
  compiler    $CC
  CFLAGS      $CFLAGS
  own flags   $FSDP_CFLAGS
  sanitizer   $enable_sanitizer
  -Werror     $enable_werror

  HDF5        $HDF5_VERSION
  jansson     $JANSSON_VERSION
  libcrypto   $CRYPTO_VERSION
  ISA-L       $ISAL_VERSION
  zstd        $ZSTD_VERSION

  PMIx        $PMIX_VERSION
  Open MPI    $MPI_VERSION
  oneDNN      $DNNL_VERSION
  Slurm       $SLURM_VERSION
  CUDA        $CUDA_VERSION
  NCCL        $NCCL_VERSION
])
    AS_IF([test $have_mpi = no],
        [AC_MSG_WARN([without Open MPI programs run on one rank only (Debian: libopenmpi-dev)])])
    AS_IF([test $have_pmix = no],
        [AC_MSG_WARN([without PMIx programs do not run under srun (Debian: libpmix-dev)])])
    AS_IF([test $have_dnnl = no],
        [AC_MSG_WARN([without oneDNN matrix products are plain loops, many times slower (Debian: libdnnl-dev)])])
])
