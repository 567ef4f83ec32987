#include "kernels.h"

namespace hocket {

extern const KernelTable kernels_baseline;
#ifdef HOCKET_X86_KERNELS
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#endif

const KernelTable& kernels() {
#ifdef HOCKET_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd"))
        return kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return kernels_avx2;
#endif
    return kernels_baseline;
}

}  // namespace hocket
