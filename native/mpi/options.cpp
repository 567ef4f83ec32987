#include "mpi/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "policy/tunables.h"
#include "protocol/header.h"

namespace hocket::mpi {
namespace {

constexpr u64 K = 1 << 10, kNo = kNeverBytes;

// From which size on hocket is no slower than the MPI underneath, by Vendor, whether ranks share cores, and Collective:
// benchmarks/results/mpi.md, on the EPYC. What was not measured follows what is most like it.
constexpr u64 kLeast[][2][kCollectives] = {
    {{2 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, kNo, kNo},
     {2 * K, 4 * K, 512 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, kNo, kNo}},
    {{2 * K, 2 * K, 128 * K, 1, 1, 2 * K, 2 * K, 2 * K, 2 * K, 1, 1, kNo},
     {2 * K, 2 * K, 128 * K, 1, 1, 2 * K, 2 * K, 2 * K, 2 * K, 1, 1, kNo}},
    {{K, 2 * K, 4 * K, 256 * K, 256 * K, 4 * K, 4 * K, 4 * K, 4 * K, 256 * K, kNo, kNo},
     {K, 2 * K, 4 * K, 256 * K, 256 * K, 4 * K, 4 * K, 4 * K, 4 * K, 256 * K, kNo, kNo}},
};

std::string_view variable(const char* name) {
    const char* const text = std::getenv(name);
    return text != nullptr ? text : "";
}

// Whether this process is the one to say what is wrong for all, as far as launchers tell.
bool is_first_rank() {
    for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
        if (!variable(name).empty()) return variable(name) == "0";
    return true;
}

bool is_set(const char* name) { return !variable(name).empty() && variable(name) != "0"; }

// Bytes of 64K, 1MB or 8. False for anything else.
bool parse_size(std::string_view text, u64& bytes) {
    u64 digits = 0, found = 0;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9' && digits < 13)
        found = found * 10 + u64(text[digits++] - '0');
    std::string_view unit = text.substr(digits);
    const u64 power = unit.empty() ? 0 : std::string_view("KMG").find(unit[0] & ~0x20) + 1;
    if (power != 0) unit.remove_prefix(1);
    if (digits == 0 || power > 3 || !(unit.empty() || unit == "B" || unit == "iB")) return false;
    bytes = found << 10 * power;
    return bytes <= kNeverBytes;
}

// Whether a rank does not know how long the messages of all are.
bool is_sizeless(Collective which) { return which == Collective::kBarrier || which == Collective::kAllToAllV; }

bool parse_least(std::string_view text, u64 (&least)[2][kCollectives]) {
    const auto equals = text.find('=');
    u64 bytes = 0;
    if (!parse_size(equals == text.npos ? text : text.substr(equals + 1), bytes)) return false;
    if (equals == text.npos) {
        for (u32 c = 0; c < kCollectives; ++c)
            if (bytes == 0 || !is_sizeless(Collective{c})) least[0][c] = least[1][c] = bytes;
        return true;
    }
    const std::string_view name = text.substr(0, equals);
    const auto* const found = std::find(std::begin(kCollectiveNames), std::end(kCollectiveNames), name);
    if (found == std::end(kCollectiveNames)) return false;
    const auto c = found - kCollectiveNames;
    least[0][c] = least[1][c] = bytes;
    return true;
}

}  // namespace

Options::Options(const Library& mpi)
    : report(is_set("HOCKET_MPI_REPORT") || is_set("HOCKET_MPI_COMPARE")),
      compare(is_set("HOCKET_MPI_COMPARE")) {
    off = variable("HOCKET_MPI") == "off";
    if (off) return;
    const bool speaks = is_first_rank();
    const auto refuse = [&](const char* name, std::string_view text) {
        if (speaks)
            std::fprintf(stderr, "hocket: %s makes no sense, so the MPI is left alone: %.*s\n", name, int(text.size()),
                         text.data());
        off = true;
    };
    if (mpi.vendor == Vendor::kOther) {
        if (speaks)
            std::fprintf(stderr, "hocket: it does not know this MPI, and leaves it alone: %s\n", mpi.version.c_str());
        off = true;
        return;
    }
    std::memcpy(least, kLeast[u32(mpi.vendor)], sizeof least);
    for (std::string_view rest = variable("HOCKET_MPI"); !rest.empty();) {
        const std::string_view option = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), option.size() + 1));
        constexpr std::string_view kMinBytes = "min-bytes:";
        if (option == "off") off = true;
        else if (!option.starts_with(kMinBytes) || !parse_least(option.substr(kMinBytes.size()), least))
            refuse("HOCKET_MPI", option);
    }
    const std::string_view contract = variable("HOCKET_REPRODUCIBLE"), reach = variable("HOCKET_REACH");
    rank_order = contract == "rank-order";
    if (!contract.empty() && !rank_order) refuse("HOCKET_REPRODUCIBLE", contract);
    // Whoever asks for an order asks for it in every sum.
    for (const Collective sums :
         {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter, Collective::kReduceScatterBlock})
        if (rank_order) least[0][u32(sums)] = least[1][u32(sums)] = 0;
    attaches = reach != "never";
    always_attaches = reach == "always";
    if (attaches && !always_attaches && !reach.empty()) refuse("HOCKET_REACH", reach);
    if (chosen_isa() == nullptr) refuse("HOCKET_ISA", variable("HOCKET_ISA"));
}

u64 Options::hash() const {
    u64 found = u64(rank_order) << 1 | u64(compare);
    for (const auto& row : least)
        for (const u64 bytes : row) found = mix(found ^ bytes);
    return found;
}

}  // namespace hocket::mpi
