/*
 * CRC-32C (Castagnoli) and CRC-32 (zip), by ISA-L's vector code, and joining
 * the checksums of neighbouring stretches without reading them again.
 */
#ifndef FSDP_CRC_H
#define FSDP_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Continue from @a crc, the checksum of what comes before (0: nothing). */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
uint32_t crc32_zip(uint32_t crc, const void *data, size_t size);

/* The checksum of A followed by B, from those of A and B and B's length. */
uint32_t crc32c_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);
uint32_t crc32_zip_join(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

#endif
