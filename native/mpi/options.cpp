#include "mpi/options.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "policy/tunables.h"
#include "protocol/header.h"

namespace hocket::mpi {
namespace {

constexpr u64 K = 1 << 10, kNo = kNeverBytes;

// From which size on hocket is no slower than the MPI underneath, by Vendor, whether ranks share cores, and Collective:
// benchmarks/results/mpi.md, on the EPYC, and what is only moved over Intel MPI on the Xeon too. What was not measured
// follows what is most like it.
constexpr u64 kLeast[][2][kCollectives] = {
    {{2 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, kNo, kNo},
     {2 * K, 4 * K, 512 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, 4 * K, kNo, kNo}},
    {{2 * K, 2 * K, 32 * K, 1, 1, 2 * K, 2 * K, 2 * K, 2 * K, 1, 1, kNo},
     {2 * K, 2 * K, 128 * K, 1, 1, 2 * K, 2 * K, 2 * K, 2 * K, 1, 1, kNo}},
    {{K, 2 * K, 4 * K, 32 * K, 32 * K, 4 * K, 4 * K, 4 * K, 4 * K, 8 * K, kNo, kNo},
     {K, 2 * K, 4 * K, 256 * K, 256 * K, 4 * K, 4 * K, 4 * K, 4 * K, 256 * K, kNo, kNo}},
};

// The same of ranks on several nodes, where benchmarks/results/nodes.md shows a gain on 2+2, 4+4 and 2+2+2+2 all
// alike; its sizes are of all blocks, here of one of eight. An AllReduce of 2 MB shows none, of 256 KB one: half of a
// MB lies between. Intel MPI was not measured.
constexpr u64 kLeastOnNodes[][kCollectives] = {
    {4 * K, 4 * K, kNo, kNo, kNo, 4 * K, 4 * K, kNo, kNo, kNo, kNo, kNo},
    {1, 4 * K, kNo, kNo, kNo, 4 * K, 4 * K, kNo, kNo, kNo, kNo, kNo},
    {kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo},
};
constexpr u64 kMostOnNodes[kCollectives] = {512 * K, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo, kNo};

constexpr u64 kMostDigits = 18;  // of what fits in a word

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
    return found <= kNeverBytes >> 10 * power;
}

bool parse_least(std::string_view text, Options& options) {
    const auto equals = text.find('=');
    u64 bytes = 0;
    if (!parse_size(equals == text.npos ? text : text.substr(equals + 1), bytes)) return false;
    if (equals == text.npos) {
        for (u32 c = 0; c < kCollectives; ++c)
            if (bytes == 0 || !is_sizeless(Collective{c})) options.take_from(Collective{c}, bytes);
        return true;
    }
    const std::string_view name = text.substr(0, equals);
    const auto* const found = std::find(std::begin(kCollectiveNames), std::end(kCollectiveNames), name);
    if (found == std::end(kCollectiveNames)) return false;
    options.take_from(Collective(found - kCollectiveNames), bytes);
    return true;
}

// "2+2", or the node of each rank, "0,1,0", as in hocket/runtime/nodes.py. False for anything else.
bool parse_nodes(std::string_view text, std::vector<u32>& nodes) {
    constexpr u64 kMostDigitsOfRanks = 4;
    const bool named = text.find(',') != text.npos;
    std::map<std::string_view, u32> known;
    u32 number = 0;
    for (bool more = !text.empty(); more; ++number) {
        const std::string_view part = text.substr(0, text.find(named ? ',' : '+'));
        more = part.size() < text.size();
        text.remove_prefix(part.size() + more);
        if (named) {
            nodes.push_back(known.try_emplace(part, u32(known.size())).first->second);
            continue;
        }
        if (part.empty() || part.size() > kMostDigitsOfRanks || part.find_first_not_of("0123456789") != part.npos)
            return false;
        nodes.insert(nodes.end(), std::strtoull(std::string(part).c_str(), nullptr, 10), number);
    }
    return true;
}

// Whether ranks may be on several machines, as the launcher says to all of them. Where nobody does they may not.
bool spans_machines() {
    const auto number = [](const char* name) { return std::atoi(std::string(variable(name)).c_str()); };
    for (const auto& [all, local] :
         {std::pair("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), std::pair("PMI_SIZE", "MPI_LOCALNRANKS")})
        if (number(all) != 0 && number(local) != 0) return number(local) < number(all);
    return number(variable("SLURM_STEP_NUM_NODES").empty() ? "SLURM_NNODES" : "SLURM_STEP_NUM_NODES") > 1;
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
    std::memcpy(least, kLeast[u32(mpi.vendor)], sizeof kLeast[0]);
    std::memcpy(least[u32(Where::kNodes)], kLeastOnNodes[u32(mpi.vendor)], sizeof kLeastOnNodes[0]);
    std::memcpy(most, kMostOnNodes, sizeof most);
    for (std::string_view rest = variable("HOCKET_MPI"); !rest.empty();) {
        const std::string_view option = rest.substr(0, rest.find(','));
        rest.remove_prefix(std::min(rest.size(), option.size() + 1));
        constexpr std::string_view kMinBytes = "min-bytes:";
        if (option == "off") off = true;
        else if (!option.starts_with(kMinBytes) || !parse_least(option.substr(kMinBytes.size()), *this))
            refuse("HOCKET_MPI", option);
    }
    const std::string_view contract = variable("HOCKET_REPRODUCIBLE"), reach = variable("HOCKET_REACH");
    rank_order = contract == "rank-order";
    if (!contract.empty() && !rank_order) refuse("HOCKET_REPRODUCIBLE", contract);
    // Whoever asks for an order asks for it in every sum.
    for (const Collective sums :
         {Collective::kAllReduce, Collective::kReduce, Collective::kReduceScatter, Collective::kReduceScatterBlock})
        if (rank_order) take_from(sums, 0);
    attaches = reach != "never";
    always_attaches = reach == "always";
    if (attaches && !always_attaches && !reach.empty()) refuse("HOCKET_REACH", reach);
    const std::string_view caches = variable("HOCKET_CACHE_BYTES");
    if (caches.size() > kMostDigits || caches.find_first_not_of("0123456789") != caches.npos)
        refuse("HOCKET_CACHE_BYTES", caches);
    else if (!caches.empty()) cache_bytes = std::strtoull(caches.data(), nullptr, 10);
    if (chosen_isa() == nullptr) refuse("HOCKET_ISA", variable("HOCKET_ISA"));
    if (!parse_nodes(variable("HOCKET_NODES"), nodes)) refuse("HOCKET_NODES", variable("HOCKET_NODES"));
    const bool spans = !nodes.empty() || spans_machines();
    for (u32 c = 0; c < kCollectives; ++c) {
        const u64 apart = spans ? least[u32(Where::kNodes)][c] : kNo;
        first[c] = std::min(least[u32(Where::kCores)][c], apart);
    }
}

void Options::take_from(Collective which, u64 bytes) {
    for (auto& row : least) row[u32(which)] = bytes;
    most[u32(which)] = kNo;
}

u64 Options::hash() const {
    u64 found = u64(rank_order) << 1 | u64(compare);
    for (const auto& row : least)
        for (const u64 bytes : row) found = mix(found ^ bytes);
    for (u32 c = 0; c < kCollectives; ++c) found = mix(mix(found ^ most[c]) ^ first[c]);
    return found;
}

}  // namespace hocket::mpi
