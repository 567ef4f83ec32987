#include "policy/caches.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace hocket {
namespace {

// Of the third level, for each processor that shares it; few have as much. A virtual machine may say that it has all
// that its host has.
constexpr u64 kMostOfAProcessor = 32 << 20;
constexpr u32 kMostIndices = 8;  // caches of one processor; there are three to five

std::string said(const std::string& file) {
    std::string word;
    std::ifstream(file) >> word;
    return word;
}

// Bytes of 512K or 16M; 0 for anything else.
u64 size_of(const std::string& text) {
    char* unit = nullptr;
    const u64 number = std::strtoull(text.c_str(), &unit, 10);
    const std::string rest = unit;
    return rest == "K" ? number << 10 : rest == "M" ? number << 20 : 0;
}

// How many numbers a list such as 0-3,8 has.
u64 length_of(const std::string& ranges) {
    u64 found = 0;
    std::istringstream parts(ranges);
    for (std::string part; std::getline(parts, part, ',');) {
        char* rest = nullptr;
        const u64 first = std::strtoull(part.c_str(), &rest, 10);
        const u64 last = *rest == '-' ? std::strtoull(rest + 1, nullptr, 10) : first;
        found += last - first + 1;
    }
    return found;
}

}  // namespace

Caches find_caches(u64 processors, const std::string& cpus) {
    Caches found{{1 << 20, processors}, {kMostOfAProcessor, 1}};  // where the system does not say
    for (u32 index = 0; index < kMostIndices; ++index) {
        const std::string cache = cpus + "/cpu0/cache/index" + std::to_string(index) + "/";
        const std::string level = said(cache + "level");
        if ((level != "2" && level != "3") || said(cache + "type") == "Instruction") continue;
        const u64 bytes = size_of(said(cache + "size")), sharers = length_of(said(cache + "shared_cpu_list"));
        if (bytes == 0 || sharers == 0) continue;
        Caches::Level& known = level == "2" ? found.second : found.third;
        known.bytes = std::min(bytes, sharers * kMostOfAProcessor);
        known.instances = std::max<u64>(1, processors / sharers);
    }
    return found;
}

}  // namespace hocket
