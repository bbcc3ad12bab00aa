# The programs: one file each, thin over the public headers.
