/*
 * Finding cuBLAS.  It is often outside the loader's path: in the toolkit's folder, or among
 * Python's packages next to PyTorch.  So these folders are tried after the loader's path, the
 * newest major version first.
 */
#include "kernels/clip/cuda/clip_cuda.h"

#include <dlfcn.h>
#include <glob.h>

#include <cstdlib>
#include <cstring>
#include <string>

static const char *const names[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so"};

/* Patterns of folders; $NAME stands for the variable's value.  A pattern whose variable is not set
 * is skipped. */
static const char *const folders[] = {
    "$CUDA_HOME/lib64",
    "$CUDA_PATH/lib64",
    "/usr/local/cuda/lib64",
    "/usr/local/cuda-*/lib64",
    "/opt/cuda/lib64",
    "/usr/lib/*-linux-gnu",
    "$VIRTUAL_ENV/lib/python3*/site-packages/nvidia/*/lib",
    "$CONDA_PREFIX/lib",
    "$CONDA_PREFIX/lib/python3*/site-packages/nvidia/*/lib",
    "$HOME/.local/lib/python3*/site-packages/nvidia/*/lib",
    "/usr/local/lib/python3*/*-packages/nvidia/*/lib",
    "/usr/lib/python3*/*-packages/nvidia/*/lib",
    "/opt/conda/lib/python3*/site-packages/nvidia/*/lib",
    "/opt/*/lib/python3*/site-packages/nvidia/*/lib",
};

/* Load the library at `path`, after libcublasLt, which it requires, from the same folder. */
static void *open_at(const std::string &path)
{
    std::string lt = path;
    lt.insert(lt.rfind("libcublas") + strlen("libcublas"), "Lt");
    dlopen(lt.c_str(), RTLD_NOW | RTLD_GLOBAL);
    return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
}

static std::string expanded(const char *folder)
{
    if (folder[0] != '$')
        return folder;
    std::string rest = strchr(folder, '/'), name(folder + 1, strchr(folder, '/'));
    const char *value = getenv(name.c_str());
    return value && value[0] ? value + rest : "";
}

static void *search()
{
    for (const char *name : names)
        if (void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL))
            return library;
    for (const char *name : names)
        for (const char *folder : folders) {
            std::string pattern = expanded(folder);
            glob_t found = {};
            void *library = nullptr;
            if (!pattern.empty() && !glob((pattern + "/" + name).c_str(), 0, nullptr, &found))
                for (size_t i = found.gl_pathc; i-- > 0 && !library;) /* the newest is the last */
                    library = open_at(found.gl_pathv[i]);
            globfree(&found);
            if (library)
                return library;
        }
    return nullptr;
}

void *fm_clip_cuda_cublas(void)
{
    static void *const library = search();
    return library;
}
