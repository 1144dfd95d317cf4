/*
 * Computes a width for every expert from scores of channels.  The scope determines which channels
 * are compared:
 *
 *   expert  every expert keeps the same number (Minitron; mode E of Fisher-MoE, arXiv 2606.05538)
 *   layer   every layer keeps the same number, the best across its experts (CAMERA-P, arXiv
 *           2508.02322; mode L of Fisher-MoE)
 *   global  the best across the model (mode G of Fisher-MoE)
 *   multiple  like layer, then rounded to a multiple: fm_channelcut_multiple
 */
#ifndef FM_CHANNELCUT_H
#define FM_CHANNELCUT_H

#include "lib/stage/ranking.h"

enum fm_channelcut { FM_CUT_EXPERT, FM_CUT_LAYER, FM_CUT_GLOBAL, FM_CUT_MULTIPLE };

/*
 * winnow's rule (hbfreed/winnow): each layer keeps its best channels, all but `count`; the number
 * of channels that an expert has among them is its share.  An expert whose share is under
 * `multiple` has width 0, unless fewer than `least` experts of a layer would be kept: then the
 * `least` largest shares are kept.  Shares of kept experts are rounded down to the multiple, but to
 * at least one multiple, and the layer's remaining channels go to the largest remainders, in whole
 * multiples; ties go to the lower expert. widths (M, E).
 */
int fm_channelcut_multiple(uint32_t *widths, const struct fm_ranking *ranking, uint64_t count,
                           uint32_t multiple, int least, struct fm_err *err);

/*
 * Set widths (M, E) that remove `count` of the E I channels of a layer, on average over the layers;
 * FM_CUT_EXPERT rounds the common width down.  Ties go to the lower expert and channel, so an
 * expert keeps a prefix of its ranking.
 */
int fm_channelcut_widths(uint32_t *widths, const struct fm_ranking *ranking,
                         enum fm_channelcut scope, uint64_t count, struct fm_err *err);

#endif
