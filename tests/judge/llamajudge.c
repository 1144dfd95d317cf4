/*
 * The loss of each token of a GGUF file in llama.cpp.  A library for llamajudge.py, which loads it
 * after llama.cpp itself and so finds the functions that are called here.
 */
#include <llama.h>
#include <math.h>
#include <stdlib.h>

static double loss_of(const float *logits, int vocabulary, int next)
{
    double largest = logits[0], sum = 0;
    for (int i = 1; i < vocabulary; ++i)
        largest = fmax(largest, logits[i]);
    for (int i = 0; i < vocabulary; ++i)
        sum += exp(logits[i] - largest);
    return largest + log(sum) - logits[next];
}

static void no_log(enum ggml_log_level level, const char *text, void *user)
{
    (void)level, (void)text, (void)user;
}

/* Write the losses of n sequences of T tokens, (n, T - 1). */
int judge(const char *path, const int *tokens, int n, int T, int threads, float *losses)
{
    llama_log_set(no_log, NULL);
    llama_backend_init();
    struct llama_model_params how = llama_model_default_params();
    how.use_extra_bufts = false; /* no repacked weights, whose products round otherwise */
    struct llama_model *model = llama_model_load_from_file(path, how);
    if (!model)
        return 1;
    struct llama_context_params c = llama_context_default_params();
    c.n_ctx = c.n_batch = c.n_ubatch = (uint32_t)T;
    c.n_threads = c.n_threads_batch = threads;
    c.type_k = c.type_v = GGML_TYPE_F32;
    c.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *context = llama_init_from_model(model, c);
    if (!context)
        return 1;
    int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    struct llama_batch batch = llama_batch_init(T, 0, 1);
    for (int s = 0; s < n; ++s) {
        llama_memory_clear(llama_get_memory(context), true);
        for (batch.n_tokens = 0; batch.n_tokens < T; ++batch.n_tokens) {
            int i = batch.n_tokens;
            batch.token[i] = tokens[s * T + i];
            batch.pos[i] = i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = 1;
        }
        if (llama_decode(context, batch))
            return 1;
        for (int i = 0; i + 1 < T; ++i)
            *losses++ =
                (float)loss_of(llama_get_logits_ith(context, i), vocabulary, tokens[s * T + i + 1]);
    }
    return 0;
}
