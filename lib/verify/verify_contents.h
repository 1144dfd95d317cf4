/*
 * The verification of a bundle in the making: what lib/verify/verify_bundle.c, which holds bytes
 * against digests, and lib/verify/verify_contents.c, which asks what the members say, share.
 */
#ifndef FM_VERIFY_CONTENTS_H
#define FM_VERIFY_CONTENTS_H

#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"
#include "lib/verify/verifier.h"

struct fm_bundle_job {
    struct fm_verifier *v;
    struct fm_bundle bundle;
    bool *good;             /* (members): the bytes have their digest, as far as it is known */
    struct fm_digest *have; /* (members) */
    struct fm_stage_model model;
    struct fm_config config;
    struct fm_segments seg;
    bool segments; /* seg is filled */
    struct fm_budgets budgets;
    bool masks; /* budgets are filled */
};

/*
 * Once the digests of all members but the weights are known: manifest, config, segments, ranking,
 * masks and adapter, as far as each is good, are what the others say of them.  Fills model, config,
 * seg and budgets.  What does not fit is a finding; an error ends the check.
 */
int fm_verify_contents(struct fm_bundle_job *j, struct fm_err *err);

/* What the manifest says in two places, or a member says too, is the same: after the members were
 * read.  lib/verify/verify_claims.c. */
void fm_verify_claims(struct fm_bundle_job *j);

#endif
