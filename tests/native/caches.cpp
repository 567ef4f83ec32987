// What the caches hold, from a made-up sysfs, as tests/runtime/test_caches.py has it.

#include "policy/caches.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runner.h"

namespace hocket::test {
namespace {

constexpr u64 K = 1 << 10, M = 1 << 20;

struct Cache {
    const char *level, *type, *size, *sharers;
};

u64 bytes_of(u32 ranks, u64 processors, const std::vector<Cache>& caches) {
    std::string made = std::filesystem::temp_directory_path() / "hocket-caches-XXXXXX";
    CHECK(::mkdtemp(made.data()) != nullptr);
    const std::filesystem::path folder = made;
    for (u64 c = 0; c < caches.size(); ++c) {
        const auto index = folder / "cpu0" / "cache" / ("index" + std::to_string(c));
        std::filesystem::create_directories(index);
        std::ofstream(index / "level") << caches[c].level << "\n";
        std::ofstream(index / "type") << caches[c].type << "\n";
        std::ofstream(index / "size") << caches[c].size << "\n";
        std::ofstream(index / "shared_cpu_list") << caches[c].sharers << "\n";
    }
    const u64 found = find_caches(processors, folder).bytes(ranks);
    std::filesystem::remove_all(folder);
    return found;
}

TEST(caches_of_two_sockets) {
    const std::vector<Cache> caches = {{"1", "Data", "32K", "0,32"},
                                       {"1", "Instruction", "32K", "0,32"},
                                       {"2", "Unified", "512K", "0,32"},
                                       {"3", "Unified", "16M", "0-15,32-47"}};
    CHECK(bytes_of(1, 64, caches) == 16 * M + 512 * K);
    CHECK(bytes_of(2, 64, caches) == 32 * M + 2 * 512 * K);
    CHECK(bytes_of(64, 64, caches) == 32 * M + 32 * 512 * K);
}

TEST(caches_of_a_host) {
    CHECK(bytes_of(2, 2, {{"2", "Unified", "2048K", "0"}, {"3", "Unified", "491520K", "0-1"}}) ==
          2 * 32 * M + 2 * 2 * M);
}

TEST(caches_that_nothing_is_known_of) {
    CHECK(bytes_of(8, 4, {}) == 32 * M + 4 * M);
    for (const char* const size : {"much", "4X", "0K"})
        CHECK(bytes_of(8, 4, {{"3", "Unified", size, "0-3"}}) == 32 * M + 4 * M);
}

}  // namespace
}  // namespace hocket::test
