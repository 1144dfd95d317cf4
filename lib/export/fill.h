/*
 * The bytes of a planned tensor, made from the bundle and checked at the same time: every segment
 * of an expert, and every other tensor, has a digest in the bundle.
 */
#ifndef FM_FILL_H
#define FM_FILL_H

#include "lib/export/plan.h"

/*
 * Write bytes [from, from + size) of a tensor to dst; both ends are cuts.  The family is open with
 * FM_OPENED_WEIGHTS, unless the tensor is numbers, which need no weights.  If it is also open with
 * FM_OPENED_CHECKSUMS, FM_EFORMAT names the expert and the channels that do not match their digest.
 * A copy (fm_planned_copy) has one digest for all its bytes, which the caller compares
 * (fm_fill_check).
 */
int fm_fill_bytes(const struct fm_exportplan *p, const struct fm_planned_tensor *t, uint64_t from,
                  uint64_t size, void *dst, struct fm_err *err);
/* The next cut after `from`, which is 0 or a cut: if possible at most `limit` bytes further.
 * Experts are cut only at the end of a block, a segment, or without checksums a channel group; what
 * is filled as a whole is not cut. */
uint64_t fm_fill_cut(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                     uint64_t from, uint64_t limit);
/* Whether a block is computed as a whole: it is rounded, or belongs to no channel. */
bool fm_fill_alone(const struct fm_exportplan *p, const struct fm_planned_block *b);
/* A tensor that is wider in the export: its own rows, one after another and with
 * padding after each.  The padding is the byte `blank`, or repeats the last `again` bytes. */
struct fm_widened {
    struct fm_box own, padding; /* rows are groups */
    struct fm_form narrow, wide;
    size_t again;
    int blank;
};
struct fm_widened fm_fill_widened(const struct fm_planned_tensor *t);
void fm_fill_widen(char *to, const char *own, const struct fm_widened *w);
/* Bytes of the largest piece between two cuts. */
uint64_t fm_fill_piece_max(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                           uint64_t limit);

/* FM_EFORMAT if `digest`, of all bytes of a tensor outside the experts, is not the bundle's. */
int fm_fill_check(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                  const struct fm_digest *digest, struct fm_err *err);

/*
 * Some tensors are made from the same bytes of the bundle, which should be read only once: gate and
 * up rows, which are interleaved there; and the values from which codes, scales and their factor
 * are computed.  A thread that fills several such tensors of one expert does so between
 * fm_fill_hold and fm_fill_drop: the shared part of the expert is read with the first tensor and
 * kept in the thread's scratch.
 *
 *     struct fm_fill_held held = {0};
 *     struct fm_mark mark = fm_scratch_mark();
 *     fm_fill_hold_add(&held, plan, tensor);      for each of them
 *     fm_fill_hold(&held);
 *     ... fm_fill_bytes ...
 *     fm_fill_drop(&held);
 *     fm_scratch_release(mark);
 */
struct fm_fill_held {
    struct fm_fill_held_part {
        size_t room; /* bytes for the widest of the experts; 0: nothing of this part is held */
        char *bytes; /* if `full`: all channels of expert e of layer m that are kept */
        bool full;
        int m, e;
    } part[FM_PACKED_PARTS_MAX];
    struct fm_fill_held *before; /* the outer struct of this thread, if this task runs while the
                                    thread waits inside another */
};
/* True if the tensor shares bytes of the bundle with others. */
bool fm_fill_shares(const struct fm_exportplan *p, const struct fm_planned_tensor *t);
void fm_fill_hold_add(struct fm_fill_held *h, const struct fm_exportplan *p,
                      const struct fm_planned_tensor *t);
void fm_fill_hold(struct fm_fill_held *h);
void fm_fill_drop(struct fm_fill_held *h);

/* Approximate offset in the bundle from which byte `at` of a tensor is read, so that pieces can be
 * filled in the bundle's order; equal for tensors that share a part of an expert.  0: the bundle
 * does not contain the tensor. */
uint64_t fm_fill_source(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                        uint64_t at);
/* The expert, m E + e, of byte `at` of a tensor; -1: none. */
int64_t fm_fill_expert(const struct fm_exportplan *p, const struct fm_planned_tensor *t,
                       uint64_t at);

/* Bytes of a tensor that one task fills: enough to amortise a system call and a seek, and few
 * enough that each thread needs little memory. */
#define FM_FILL_PIECE ((uint64_t)4 << 20)

#endif
