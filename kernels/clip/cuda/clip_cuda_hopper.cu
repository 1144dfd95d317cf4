/* Launches and tensor maps of the Hopper path, whose kernels are in clip_cuda_hopper.cuh. */
#include "kernels/clip/cuda/clip_cuda.h"
#include "kernels/clip/cuda/clip_cuda_hopper.cuh"

static const void *kernel_of(int type, int product)
{
    if (type == FM_CLIP_F16)
        return product == 1 ? (const void *)hopper_product<__half, 1>
                            : (const void *)hopper_product<__half, 2>;
    return product == 1 ? (const void *)hopper_product<__nv_bfloat16, 1>
                        : (const void *)hopper_product<__nv_bfloat16, 2>;
}

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's function, found through the runtime so that nothing links against libcuda.  The
 * query has one name in toolkits before 12.5 and another in those from 13 on. */
static encode_function encoder()
{
    static encode_function found;
    if (!found) {
        const char *name = "cuTensorMapEncodeTiled";
        void *at = nullptr;
        cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
        cudaError_t code =
            cudaGetDriverEntryPointByVersion(name, &at, 12000, cudaEnableDefault, &result);
#else
        cudaError_t code = cudaGetDriverEntryPoint(name, &at, cudaEnableDefault, &result);
#endif
        if (code == cudaSuccess && result == cudaDriverEntryPointSuccess)
            found = (encode_function)at;
    }
    return found;
}

bool fm_clip_cuda_map(CUtensorMap *map, int type, const void *base, int64_t rows, int64_t columns,
                      unsigned box_rows)
{
    cuuint64_t sizes[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    cuuint64_t strides[1] = {(cuuint64_t)columns * 2};
    cuuint32_t box[2] = {FM_CUDA_STEP, box_rows}, steps[2] = {1, 1};
    encode_function encode_tiled = encoder();
    return encode_tiled &&
           encode_tiled(map,
                        type == FM_CLIP_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                        2, (void *)base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

int32_t fm_clip_cuda_hopper_prepare(struct fm_clip_cuda_layer *layer, struct fm_clip_error *error)
{
    const struct fm_clip_layer *given = &layer->given;
    for (int p = 1; p <= 2; p++) {
        cudaError_t code = cudaFuncSetAttribute(
            kernel_of(given->type, p), cudaFuncAttributeMaxDynamicSharedMemorySize, HOPPER_BYTES);
        if (code != cudaSuccess)
            return fm_clip_cuda_fail(error, code, "the hopper kernels");
    }
    if (!fm_clip_cuda_map(&layer->gate_up, given->type, given->gate_up, 2 * given->channels,
                          given->H, 64) ||
        !fm_clip_cuda_map(&layer->down, given->type, given->down, given->channels, given->H, 64))
        return fm_clip_fail(error, FM_CLIP_EDEVICE,
                            "the driver cannot make a tensor map of %lld channels of %d",
                            (long long)given->channels, given->H);
    layer->shape = {{64, 128}, {128, 256}, layer->processors, 1};
    return FM_CLIP_OK;
}

int32_t fm_clip_cuda_hopper(const struct fm_clip_cuda_layer *layer, const struct fm_cuda_job *job,
                            cudaStream_t stream, struct fm_clip_error *error)
{
    const CUtensorMap *weights[2] = {&layer->gate_up, &layer->down};
    const void *base[2] = {job->x, job->h};
    int32_t columns[2] = {job->H, job->channels_padded};
    for (int p = 0; p < 2; p++) {
        CUtensorMap rows;
        if (!fm_clip_cuda_map(&rows, job->type, base[p], job->slots, columns[p], ROW_BOX))
            return fm_clip_fail(error, FM_CLIP_EDEVICE,
                                "the driver cannot make a tensor map of %d rows of %d", job->slots,
                                columns[p]);
        void *arguments[] = {(void *)job, &rows, (void *)weights[p]};
        cudaError_t code =
            cudaLaunchKernel(kernel_of(job->type, p + 1), dim3((unsigned)job->shape.ctas),
                             dim3(HOPPER_THREADS), arguments, HOPPER_BYTES, stream);
        if (code != cudaSuccess)
            return fm_clip_cuda_fail(error, code, "launch of a hopper kernel");
    }
    return FM_CLIP_OK;
}
