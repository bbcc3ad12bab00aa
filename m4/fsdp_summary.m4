# SYNOPSIS
#
#   FSDP_SUMMARY
#
# DESCRIPTION
#
#   Print what was found, at the end of configure.

AC_DEFUN([FSDP_SUMMARY], [
    AC_MSG_NOTICE([
  $PACKAGE_NAME $PACKAGE_VERSION

  prefix        $prefix
  compiler      $CC
  flags         $CFLAGS
  own flags     $FSDP_CFLAGS
  sanitizer     $enable_sanitizer

  HDF5          $HDF5_VERSION
  PMIx          $PMIX_VERSION
  Open MPI      $MPI_VERSION
  oneDNN        $DNNL_VERSION
  Slurm         $SLURM_VERSION
  CUDA          $CUDA_VERSION
  NCCL          $NCCL_VERSION
])
])
