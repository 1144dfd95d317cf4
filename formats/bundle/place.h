/*
 * The order of a bundle's members: one table for the reader and the writer.  Private to
 * formats/bundle/bundle.c and formats/bundle/bundlewriter.c.
 */
#ifndef FM_PLACE_H
#define FM_PLACE_H

#include <stdbool.h>

/* Places in stream order; pads may be anywhere between them. */
enum fm_member_place {
    FM_PLACE_MANIFEST,
    FM_PLACE_BUILD,
    FM_PLACE_CARRIED,
    FM_PLACE_RANKING,
    FM_PLACE_MASKS,
    FM_PLACE_ADAPTER,
    FM_PLACE_SEGMENTS,
    FM_PLACE_WEIGHTS,
    FM_PLACE_CHECKSUMS,
    FM_PLACE_PAD,
    FM_PLACE_PART_SUMS, /* at the end of each part after the first */
    FM_PLACES
};

/* Place of a member by name, -1 if no bundle has such a member. */
int fm_place_of(const char *name);

/* Whether the manifest states the digest; whether CHECKSUMS does. */
bool fm_place_listed(int place);
bool fm_place_summed(int place);

#endif
