#include <array>
#include <cstdlib>
#include <cstring>

#include "device/kernels.h"

namespace hocket {

extern const KernelTable kernels_baseline;
#ifdef HOCKET_X86_KERNELS
extern const KernelTable kernels_avx2;
extern const KernelTable kernels_avx512;
#endif

const Isa* isas() {
    static const auto list = [] {
        std::array<Isa, 4> all{};
        Isa* next = all.data();
#ifdef HOCKET_X86_KERNELS
        __builtin_cpu_init();
        // What CMakeLists.txt lets the compiler use: x86-64-v3, which has F16C too, and x86-64-v4.
        const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
        if (v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512cd"))
            *next++ = {"avx512", &kernels_avx512};
        if (v3) *next++ = {"avx2", &kernels_avx2};
#endif
        *next = {"baseline", &kernels_baseline};
        return all;
    }();
    return list.data();
}

const Isa* chosen_isa() {
    const char* wanted = std::getenv("HOCKET_ISA");
    const Isa* isa = isas();
    if (wanted == nullptr || *wanted == 0) return isa;
    while (isa->name != nullptr && std::strcmp(isa->name, wanted) != 0) ++isa;
    return isa->name != nullptr ? isa : nullptr;
}

}  // namespace hocket
