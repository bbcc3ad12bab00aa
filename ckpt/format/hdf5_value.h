/*
 * What an HDF5 file holds beside tensors: texts, and small numbers in
 * attributes, as values of the catalog (value.h).
 */
#ifndef FSDP_HDF5_VALUE_H
#define FSDP_HDF5_VALUE_H

#include <hdf5.h>

#include "ckpt/catalog.h"

/* Is it a dataset of texts? */
bool hdf5_is_text(hid_t dataset);

/* Add a dataset of texts, by its path. */
fsdp_status_t hdf5_value_add(catalog_t *cat, hid_t dataset, const char *link,
                             fsdp_error_t *err);

/* Add the attributes of an object as LINK@NAME.  Those that are neither texts
 * nor numbers are HDF5's own: references, tables of dimensions. */
fsdp_status_t hdf5_value_add_attributes(catalog_t *cat, hid_t object,
                                        const char *link, fsdp_error_t *err);

#endif
