/*
 * The fake device and its kernels: the code that nvcc's objects register when they are loaded,
 * launches by name, attributes, the driver's tensor maps, and errors.
 */
#include "tests/gpu/double.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <map>
#include <vector>

/* --- errors, and failures on demand */

static cudaError_t last_error;
static int countdown, calls;

int double_error(int code)
{
    if (code != cudaSuccess)
        last_error = (cudaError_t)code;
    return code;
}

void double_fail_after(int n)
{
    countdown = n;
}

bool double_fails(const char *)
{
    calls++;
    return countdown > 0 && --countdown == 0;
}

int double_calls(void)
{
    return calls;
}

extern "C" cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

extern "C" const char *cudaGetErrorString(cudaError_t code)
{
    switch ((int)code) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInsufficientDriver:
        return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorNoKernelImageForDevice:
        return "no kernel image is available for execution on the device";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
        return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureImplicit:
        return "operation would make the legacy stream depend on a capturing blocking stream";
    }
    static char text[40];
    snprintf(text, sizeof text, "error %d of the double", (int)code);
    return text;
}

/* Memory and handles that still exist when a program ends successfully are leaks. */
static void at_exit(int status, void *)
{
    int memory = double_live_allocations(), handles = double_live_handles();
    if (status == 0 && memory + handles > 0)
        double_die("%d allocations and %d handles are left at the end", memory, handles);
}

/* --- kernels */

/* One piece of device code in an object. */
struct code {
    bool ptx;
    bool alone; /* only for this capability, such as sm_90a */
    int capability;
};

struct registered {
    const double_kernel *kernel;
    std::string name;
    size_t dynamic; /* the most dynamic shared memory that a launch may request */
    std::vector<code> codes;
};

/* Parse the headers that nvcc puts before the code: a wrapper, a header, and one for each piece. */
static std::vector<code> codes_of(void **handle)
{
    struct wrapper {
        uint32_t magic, version;
        const uint8_t *data;
    };
    struct header {
        uint32_t magic;
        uint16_t version, bytes;
        uint64_t bytes_behind;
    };
    struct piece {
        uint16_t kind, version; /* kind 1: PTX, 2: instructions */
        uint32_t bytes;
        uint64_t bytes_behind;
        uint32_t packed, spare;
        uint16_t minor, major;
        uint32_t capability;
        uint32_t name, name_bytes;
        uint64_t flags; /* 0x100000: alone */
    };
    const uint8_t *at = ((const wrapper *)handle)->data, *end;
    std::vector<code> codes;
    header h;
    memcpy(&h, at, sizeof h);
    if (h.magic != 0xba55ed50u)
        double_die("nvcc's objects store their code in a form that the double does not support");
    at += h.bytes;
    for (end = at + h.bytes_behind; at < end;) {
        piece p;
        memcpy(&p, at, sizeof p);
        codes.push_back({p.kind == 1, (p.flags & 0x100000) != 0, (int)p.capability});
        at += p.bytes + p.bytes_behind;
    }
    return codes;
}

static std::map<const void *, registered> &kernels()
{
    static std::map<const void *, registered> all;
    return all;
}

/* "void f<A, 1>(B)" -> "f<A, 1>" */
static std::string plain_name(const char *mangled)
{
    int status = 0;
    char *text = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
    std::string name = text ? text : mangled;
    free(text);
    name = name.substr(0, name.find('('));
    return name.compare(0, 5, "void ") ? name : name.substr(5);
}

extern "C" void **__cudaRegisterFatBinary(void *fat)
{
    static bool once;
    if (!once)
        on_exit(at_exit, nullptr);
    once = true;
    return (void **)fat;
}
extern "C" void __cudaRegisterFatBinaryEnd(void **)
{
}
extern "C" void __cudaUnregisterFatBinary(void **)
{
}
extern "C" void __cudaRegisterFunction(void **handle, const char *host, char *, const char *device,
                                       int, uint3 *, uint3 *, dim3 *, dim3 *, int *)
{
    std::string name = plain_name(device);
    kernels()[host] = {double_find_kernel(name), name, 48 << 10, codes_of(handle)};
}

static int capability()
{
    const char *given = double_word("cc");
    char *dot = nullptr;
    long major = given ? strtol(given, &dot, 10) : 9;
    return (int)major * 10 + (given ? atoi(dot + 1) : 0);
}

static registered *find(const void *function)
{
    auto at = kernels().find(function);
    if (at == kernels().end())
        double_die("an unregistered kernel is used");
    if (!at->second.kernel)
        double_die("kernel %s is unknown: double_kernels.cc has a row for each",
                   at->second.name.c_str());
    return &at->second;
}

/* Whether a kernel has code for the device. */
static bool has_code(const registered &r)
{
    int here = capability();
    for (const code &c : r.codes)
        if (c.alone ? c.capability == here
                    : c.capability <= here && (c.ptx || c.capability / 10 == here / 10))
            return true;
    return false;
}

static cudaError_t launch(const void *function, dim3 grid, dim3 block, void **arguments,
                          size_t shared, cudaStream_t stream)
{
    registered *r = find(function);
    size_t threads = (size_t)block.x * block.y * block.z;
    if (double_fails("cudaLaunchKernel"))
        return (cudaError_t)double_error(cudaErrorLaunchOutOfResources);
    if (!has_code(*r))
        return (cudaError_t)double_error(cudaErrorNoKernelImageForDevice);
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535 || threads == 0 ||
        grid.x > 0x7fffffff || threads > (size_t)r->kernel->threads_max || shared > r->dynamic)
        return (cudaError_t)double_error(cudaErrorInvalidValue);
    if (block.y != 1 || block.z != 1)
        double_die("%s: the emulator supports only blocks of one dimension", r->kernel->name);
    unsigned sizes[3] = {grid.x, grid.y, grid.z};
    double_work work = r->kernel->bind(sizes, block.x, shared, arguments);
    return (cudaError_t)double_error(double_enqueue(stream, r->kernel->name, work));
}

extern "C" cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block,
                                        void **arguments, size_t shared, cudaStream_t stream)
{
    return launch(function, grid, block, arguments, shared, stream);
}
extern "C" cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function)
{
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}
extern "C" cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                          void **arguments, size_t shared, cudaStream_t stream)
{
    return launch((const void *)kernel, grid, block, arguments, shared, stream);
}

struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
static std::vector<configuration> pushed;

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                                struct CUstream_st *stream)
{
    pushed.push_back({grid, block, shared, stream});
    return 0;
}
extern "C" cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared,
                                                  void *stream)
{
    configuration c = pushed.back();
    pushed.pop_back();
    *grid = c.grid;
    *block = c.block;
    *shared = c.shared;
    *(cudaStream_t *)stream = c.stream;
    return cudaSuccess;
}

extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *function)
{
    registered *r = find(function);
    if (double_fails("cudaFuncGetAttributes"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = r->kernel->threads_max;
    return (cudaError_t)double_error(has_code(*r) ? cudaSuccess : cudaErrorNoKernelImageForDevice);
}

extern "C" cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute,
                                            int value)
{
    registered *r = find(function);
    size_t most = (capability() == 80 ? 163u : capability() == 90 ? 227u : 99u) << 10;
    if (double_fails("cudaFuncSetAttribute"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (!has_code(*r))
        return (cudaError_t)double_error(cudaErrorNoKernelImageForDevice);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        (size_t)value + r->kernel->shared_static > most)
        return (cudaError_t)double_error(cudaErrorInvalidValue);
    r->dynamic = (size_t)value;
    return cudaSuccess;
}

extern "C" cudaError_t
cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int, size_t shared)
{
    registered *r = find(function);
    if (double_fails("cudaOccupancyMaxActiveBlocksPerMultiprocessor"))
        return (cudaError_t)double_error(cudaErrorUnknown);
    if (!has_code(*r))
        return (cudaError_t)double_error(cudaErrorNoKernelImageForDevice);
    *blocks = shared <= r->dynamic ? 2 : 0;
    return cudaSuccess;
}

static int processors()
{
    const char *given = double_word("processors");
    return given ? atoi(given) : 3;
}

/* --- the device */

extern "C" cudaError_t cudaGetDeviceCount(int *count)
{
    *count = double_word("none") ? 0 : 1;
    return (cudaError_t)double_error(double_word("none") ? cudaErrorInsufficientDriver
                                                         : cudaSuccess);
}
extern "C" cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return (cudaError_t)double_error(double_word("none") ? cudaErrorInsufficientDriver
                                                         : cudaSuccess);
}
extern "C" cudaError_t cudaSetDevice(int device)
{
    return (cudaError_t)double_error(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

extern "C" cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
    if (device != 0)
        return (cudaError_t)double_error(cudaErrorInvalidDevice);
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability() / 10;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        *value = capability() % 10;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = processors();
        return cudaSuccess;
    case cudaDevAttrL2CacheSize:
        *value = 50 << 20;
        return cudaSuccess;
    }
    double_die("attribute %d of the device is unknown here", (int)attribute);
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
    if (device != 0)
        return (cudaError_t)double_error(cudaErrorInvalidDevice);
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "a strict double of compute capability %d.%d",
             capability() / 10, capability() % 10);
    p->major = capability() / 10;
    p->minor = capability() % 10;
    p->multiProcessorCount = processors();
    return cudaSuccess;
}

/* --- the driver's tensor maps, by the rules that cuda.h states above the function; the fields
 * that the emulator's TMA needs are in emu_map (tests/unit/cuda_emulator.h) */

struct map_contents {
    const void *base;
    int64_t rows, columns;
    int box_rows;
};

static bool map_is_lawful(const void *map, cuuint32_t rank, const void *base,
                          const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                          const cuuint32_t *steps)
{
    return (uintptr_t)map % 64 == 0 && rank == 2 && base && (uintptr_t)base % 16 == 0 && sizes[0] &&
           sizes[1] && sizes[0] <= (cuuint64_t)1 << 32 && sizes[1] <= (cuuint64_t)1 << 32 &&
           strides[0] % 16 == 0 && strides[0] < (cuuint64_t)1 << 40 && strides[0] >= 2 * sizes[0] &&
           box[0] && box[1] && box[0] <= 256 && box[1] <= 256 && box[0] * 2 % 16 == 0 &&
           box[0] * 2 <= 128 && steps[0] && steps[1] && steps[0] <= 8 && steps[1] <= 8;
}

static CUresult encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                       const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                       const cuuint32_t *steps, CUtensorMapInterleave interleave,
                       CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                       CUtensorMapFloatOOBfill fill)
{
    bool known =
        (type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) &&
        interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && swizzle == CU_TENSOR_MAP_SWIZZLE_128B &&
        fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
    if (double_fails("cuTensorMapEncodeTiled") || !known ||
        !map_is_lawful(map, rank, base, sizes, strides, box, steps))
        return CUDA_ERROR_INVALID_VALUE;
    if (!double_is_device(base, (size_t)(strides[0] * (sizes[1] - 1) + 2 * sizes[0])))
        double_die("a tensor map of %llu rows of %llu leaves its allocation",
                   (unsigned long long)sizes[1], (unsigned long long)sizes[0]);
    map_contents contents = {base, (int64_t)sizes[1], (int64_t)sizes[0], (int)box[1]};
    memset((void *)map, 0, sizeof *map);
    memcpy((void *)map, &contents, sizeof contents);
    return CUDA_SUCCESS;
}

static cudaError_t entry_point(const char *name, void **function, unsigned version,
                               cudaDriverEntryPointQueryResult *result)
{
    bool there =
        !strcmp(name, "cuTensorMapEncodeTiled") && version >= 12000 && !double_word("notensormap");
    *function = there ? (void *)encode : nullptr;
    *result = there ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

#if CUDART_VERSION >= 12050
extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function,
                                                        unsigned version, unsigned long long,
                                                        cudaDriverEntryPointQueryResult *result)
{
    return entry_point(name, function, version, result);
}
#else
extern "C" cudaError_t cudaGetDriverEntryPoint(const char *name, void **function,
                                               unsigned long long,
                                               cudaDriverEntryPointQueryResult *result)
{
    return entry_point(name, function, CUDART_VERSION, result);
}
#endif
