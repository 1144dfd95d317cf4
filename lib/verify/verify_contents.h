/*
 * State of the verification of a bundle, shared by lib/verify/verify_bundle.c, which compares bytes
 * with digests, and lib/verify/verify_contents.c, which checks the meaning of members.
 */
#ifndef FM_VERIFY_CONTENTS_H
#define FM_VERIFY_CONTENTS_H

#include "lib/stage/budgets.h"
#include "lib/stage/stage.h"
#include "lib/verify/verifier.h"

struct fm_bundle_job {
    struct fm_verifier *v;
    struct fm_bundle bundle;
    bool *good;             /* (members): no mismatch of the digest was found */
    struct fm_digest *have; /* (members) */
    struct fm_stage_model model;
    struct fm_config config;
    struct fm_segments seg;
    bool segments; /* seg is set */
    struct fm_budgets budgets;
    bool masks; /* budgets is set */
};

/*
 * Check the members other than weights once their digests are known: manifest, config, segments,
 * ranking, masks and adapter must agree, as far as they are intact.  Fills model, config, seg and
 * budgets.  A contradiction is a finding; an error ends the check.
 */
int fm_verify_contents(struct fm_bundle_job *j, struct fm_err *err);

#endif
