# SYNOPSIS
#
#   FSDP_LIB_HDF5
#
# DESCRIPTION
#
#   Find serial HDF5, 1.10.2 or later: pkg-config's hdf5-serial (Debian) or
#   hdf5.  Sets HDF5_CFLAGS, HDF5_LIBS and HDF5_VERSION.

AC_DEFUN([FSDP_LIB_HDF5], [
    PKG_CHECK_EXISTS([hdf5-serial], [hdf5_module=hdf5-serial],
        [hdf5_module=hdf5])
    PKG_CHECK_MODULES([HDF5], [$hdf5_module >= 1.10.2], [],
        [AC_MSG_ERROR([HDF5 1.10.2 or later not found (Debian: libhdf5-dev)])])
    HDF5_VERSION=`$PKG_CONFIG --modversion $hdf5_module`
])
