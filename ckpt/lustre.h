/*
 * Lustre spreads a file over as many storage targets as its layout says.  The
 * layout is the user's and the site's affair (lfs-setstripe(1)): it is
 * inherited from the directory, and only looked at here.
 */
#ifndef FSDP_LUSTRE_H
#define FSDP_LUSTRE_H

#include <stdbool.h>

/* Whether a file, or new files in a directory, are known to lie on one storage
 * target; false where that is not known, as on other file systems. */
bool lustre_is_narrow(const char *path);

#endif
