#include "mpi/report.h"

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace hocket::mpi {
namespace {

// As it goes from rank to rank. `bytes`: its own, which other builds may have otherwise.
struct Row {
    u64 bytes;
    char communicator[64], collective[24], why[160];
    u32 size;
    Tally tally;
};

struct Lines {
    std::mutex lock;
    std::map<std::tuple<std::string, u32, std::string, std::string>, Tally> all;
    void add(const std::string& communicator, u32 size, const std::string& collective, const std::string& why,
             const Tally& tally) {
        Tally& sum = all[{communicator, size, collective, why}];
        sum.calls += tally.calls;
        sum.bytes += tally.bytes;
        sum.seconds += tally.seconds;
    }
};
Lines& lines() {
    static Lines& found = *new Lines;  // for good: a program may end MPI in a destructor
    return found;
}

std::vector<Row> rows() {
    std::vector<Row> found;
    for (const auto& [key, tally] : lines().all) {
        const auto& [communicator, size, collective, why] = key;
        Row row{.bytes = sizeof(Row)};
        std::snprintf(row.communicator, sizeof row.communicator, "%s", communicator.c_str());
        std::snprintf(row.collective, sizeof row.collective, "%s", collective.c_str());
        std::snprintf(row.why, sizeof row.why, "%s", why.c_str());
        row.size = size;
        row.tally = tally;
        found.push_back(row);
    }
    return found;
}

void print() {
    std::fprintf(stderr, "hocket: %-24s %5s  %-20s %10s %14s %12s %10s  %s\n", "communicator", "ranks", "collective",
                 "calls", "bytes", "seconds", "us a call", "");
    for (const auto& [key, tally] : lines().all) {
        const auto& [communicator, size, collective, why] = key;
        std::fprintf(stderr, "hocket: %-24.24s %5u  %-20s %10llu %14llu %12.6f %10.2f  %s\n", communicator.c_str(),
                     size, collective.c_str(), tally.calls, tally.bytes, tally.seconds,
                     1e6 * tally.seconds / double(tally.calls), why.c_str());
    }
}

}  // namespace

void note(const std::string& communicator, u32 size, const char* collective, const std::string& why,
          const Tally& tally) {
    const std::lock_guard held(lines().lock);
    lines().add(communicator, size, collective, why, tally);
}

void print_report(const Library& mpi) {
    int rank = 0, size = 0;
    mpi.Comm_rank(mpi.abi.world, &rank);
    mpi.Comm_size(mpi.abi.world, &size);
    const std::vector<Row> mine = rows();
    int bytes = int(mine.size() * sizeof(Row));
    const u64 ranks = u64(size);
    std::vector<int> lengths(ranks), places(ranks);
    mpi.Gather.plain(&bytes, 1, mpi.integer, lengths.data(), 1, mpi.integer, 0, mpi.abi.world);
    u64 total = 0;
    for (u64 r = 0; r < lengths.size(); total += u64(lengths[r++])) places[r] = int(total);
    std::vector<char> all(total);
    mpi.Gatherv(mine.data(), bytes, mpi.byte, all.data(), lengths.data(), places.data(), mpi.byte, 0, mpi.abi.world);
    if (rank != 0) return;
    lines().all.clear();
    for (Row row; total >= sizeof row; total -= sizeof row) {
        std::memcpy(&row, &all[all.size() - total], sizeof row);
        if (row.bytes != sizeof row) break;
        lines().add(row.communicator, row.size, row.collective, row.why, row.tally);
    }
    if (total == 0) print();
    else std::fputs("hocket: no report: ranks have different builds of hocket\n", stderr);
}

}  // namespace hocket::mpi
