#include "lib/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/mem.h"

/* How a family names its experts' matrices: layer and expert in this order. */
static const struct naming {
    const char *family;
    const char *matrix[FM_MATRICES];
    const char *marker; /* no tensor but an expert's has this in its name */
} namings[] = {
    {"mixtral",
     {"model.layers.%d.block_sparse_moe.experts.%d.w1.weight",
      "model.layers.%d.block_sparse_moe.experts.%d.w3.weight",
      "model.layers.%d.block_sparse_moe.experts.%d.w2.weight"},
     ".experts."},
};

static const struct naming *find_naming(const char *family)
{
    for (size_t i = 0; i < sizeof namings / sizeof *namings; i++)
        if (strcmp(namings[i].family, family) == 0)
            return &namings[i];
    return NULL;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
bool fm_checkpoint_name(char *name, size_t capacity, const char *family, int l, int e,
                        enum fm_matrix matrix)
{
    const struct naming *naming = find_naming(family);
    int n = naming ? snprintf(name, capacity, naming->matrix[matrix], l, e) : -1;
    return n >= 0 && (size_t)n < capacity;
}
#pragma GCC diagnostic pop

const struct fm_place *fm_checkpoint_expert(const struct fm_checkpoint *cp, int l, int e,
                                            enum fm_matrix matrix)
{
    size_t expert = (size_t)l * (size_t)cp->config.E + (size_t)e;
    return &cp->expert[expert * FM_MATRICES + matrix];
}

static int check_matrix(struct fm_checkpoint *cp, const struct fm_tensor *t, enum fm_matrix matrix,
                        struct fm_err *err)
{
    uint64_t H = (uint64_t)cp->config.H, I = (uint64_t)cp->config.I;
    uint64_t rows = matrix == FM_MATRIX_DOWN ? H : I, columns = matrix == FM_MATRIX_DOWN ? I : H;
    if (t->dims != 2 || t->shape[0] != rows || t->shape[1] != columns)
        return fm_fail(err, FM_EFORMAT, "tensor '%s' is not (%llu, %llu) as config.json says",
                       t->name, (unsigned long long)rows, (unsigned long long)columns);
    if (!fm_dtype_is_weight(t->dtype))
        return fm_fail(err, FM_ECONFIG,
                       "tensor '%s' is %s; experts in BF16, F16 or F32 are supported", t->name,
                       fm_dtype_name(t->dtype));
    if (t->dtype != cp->dtype)
        return fm_fail(err, FM_ECONFIG, "tensor '%s' is %s, other experts are %s", t->name,
                       fm_dtype_name(t->dtype), fm_dtype_name(cp->dtype));
    return FM_OK;
}

static int find_experts(struct fm_checkpoint *cp, struct fm_err *err)
{
    const struct fm_config *c = &cp->config;
    const char *family = fm_config_family(c);
    size_t n = (size_t)c->L * (size_t)c->E * FM_MATRICES;
    cp->expert = fm_alloc(n, sizeof *cp->expert, "the list of experts", err);
    if (!cp->expert)
        return err->code;
    for (size_t i = 0; i < n; i++) {
        char name[FM_ST_NAME_BYTES_MAX + 1];
        enum fm_matrix matrix = (enum fm_matrix)(i % FM_MATRICES);
        int e = (int)(i / FM_MATRICES % (size_t)c->E), l = (int)(i / FM_MATRICES / (size_t)c->E);
        if (!fm_checkpoint_name(name, sizeof name, family, l, e, matrix))
            return fm_fail(err, FM_ECONFIG, "models of family '%s' cannot be packed", family);
        const struct fm_shard *shard;
        const struct fm_tensor *t = fm_hfdir_find(&cp->dir, name, &shard);
        if (!t)
            return fm_fail(err, FM_EFORMAT, "tensor '%s' is missing", name);
        if (i == 0)
            cp->dtype = t->dtype;
        int rc = check_matrix(cp, t, matrix, err);
        if (rc != FM_OK)
            return rc;
        cp->expert[i] = (struct fm_place){t, &shard->file};
    }
    return FM_OK;
}

static int compare_places(const void *a, const void *b)
{
    return strcmp(((const struct fm_place *)a)->tensor->name,
                  ((const struct fm_place *)b)->tensor->name);
}

static int compare_pointers(const void *a, const void *b)
{
    const struct fm_tensor *x = *(const struct fm_tensor *const *)a;
    const struct fm_tensor *y = *(const struct fm_tensor *const *)b;
    return (x > y) - (x < y);
}

/* Everything that find_experts did not take. */
static int find_rest(struct fm_checkpoint *cp, struct fm_err *err)
{
    size_t experts = (size_t)cp->config.L * (size_t)cp->config.E * FM_MATRICES, all = 0;
    for (size_t s = 0; s < cp->dir.shards; s++)
        all += cp->dir.shard[s].st.count;
    const struct fm_tensor **taken = fm_alloc(experts, sizeof *taken, "the list of experts", err);
    cp->rest = fm_alloc(all, sizeof *cp->rest, "the list of tensors", err);
    int rc = taken && cp->rest ? FM_OK : err->code;
    for (size_t i = 0; i < experts && rc == FM_OK; i++)
        taken[i] = cp->expert[i].tensor;
    if (rc == FM_OK)
        qsort(taken, experts, sizeof *taken, compare_pointers);
    const char *marker = find_naming(fm_config_family(&cp->config))->marker;
    for (size_t s = 0; s < cp->dir.shards && rc == FM_OK; s++) {
        const struct fm_shard *shard = &cp->dir.shard[s];
        for (size_t i = 0; i < shard->st.count && rc == FM_OK; i++) {
            const struct fm_tensor *t = &shard->st.tensor[i];
            if (bsearch(&t, taken, experts, sizeof *taken, compare_pointers))
                continue;
            if (strstr(t->name, marker))
                rc = fm_fail(err, FM_EFORMAT, "tensor '%s' belongs to no expert of config.json",
                             t->name);
            cp->rest[cp->rests++] = (struct fm_place){t, &shard->file};
        }
    }
    if (rc == FM_OK)
        qsort(cp->rest, cp->rests, sizeof *cp->rest, compare_places);
    free(taken);
    return rc;
}

int fm_checkpoint_open(struct fm_checkpoint *cp, const char *path, struct fm_err *err)
{
    *cp = (struct fm_checkpoint){0};
    int rc = fm_hfdir_open(&cp->dir, path, err);
    if (rc != FM_OK)
        return rc;
    rc = fm_config_parse(&cp->config, cp->dir.config, cp->dir.config_bytes, err);
    if (rc == FM_OK)
        rc = find_experts(cp, err);
    if (rc == FM_OK)
        rc = find_rest(cp, err);
    if (rc != FM_OK) {
        fm_within(err, "%s", path);
        fm_checkpoint_close(cp);
    }
    return rc;
}

void fm_checkpoint_close(struct fm_checkpoint *cp)
{
    free(cp->expert);
    free(cp->rest);
    fm_hfdir_close(&cp->dir);
    *cp = (struct fm_checkpoint){0};
}
