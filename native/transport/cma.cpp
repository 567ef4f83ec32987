#include "transport/cma.h"

#include <sys/uio.h>
#include <algorithm>

namespace hocket {
namespace {

constexpr u64 kWitness = 0x686f636b65742072;
volatile u64 witness = kWitness;

constexpr u64 kMostAtOnce = u64(1) << 30;  // the kernel copies less than 2 GB in a call

// Copies by the kernel, of which one ends early at a page that it cannot reach. Returns 0 or an errno.
template <class Copy> int copy_all(const Copy& copy, pid_t process, char* mine, char* theirs, u64 bytes) {
    for (u64 at = 0; at < bytes; at += kMostAtOnce) {
        const u64 size = std::min(kMostAtOnce, bytes - at);
        const iovec here{mine + at, size}, there{theirs + at, size};
        const ssize_t copied = copy(process, &here, 1, &there, 1, 0);
        if (copied < 0) return errno;
        if (u64(copied) < size) return EFAULT;
    }
    return 0;
}

}  // namespace

u64 witness_place() { return reinterpret_cast<u64>(&witness); }

bool may_access(pid_t process, u64 place) {
    u64 found = 0;
    char *const theirs = reinterpret_cast<char*>(place), *const mine = reinterpret_cast<char*>(&found);
    return pull_from(process, theirs, mine, sizeof found) == 0 && found == kWitness &&
           push_to(process, theirs, mine, sizeof found) == 0;
}

int pull_from(pid_t process, const char* theirs, char* mine, u64 bytes) {
    return copy_all(::process_vm_readv, process, mine, const_cast<char*>(theirs), bytes);
}

int push_to(pid_t process, char* theirs, const char* mine, u64 bytes) {
    return copy_all(::process_vm_writev, process, const_cast<char*>(mine), theirs, bytes);
}

void CmaCopies::reduce(Kernel kernel, const Manner& how, const Room& room, u32 sources, u32 used, u64 bytes,
                       Traffic& moved) {
    const u32* const owners = room.owners;
    char** const loaded = room.pointers + used;  // where the kernel loads from, and stores to
    char** const stored = loaded + sources;
    const bool stores = std::find(owners + sources, owners + used, kMine) != owners + used;
    const bool copies = sources == 1 && (stores || owners[0] == kMine);  // and so needs no block
    const u64 most = copies && used == 2 ? bytes : kCmaBlocks / sources / kAlign * kAlign;
    for (u64 at = 0; at < bytes && error_ == 0; at += most) {
        const u64 size = std::min(most, bytes - at);
        u32 here = 0, done = 0;
        for (u32 d = sources; d < used; ++d)
            if (owners[d] == kMine) stored[here++] = room.pointers[d] + at;
        for (u32 s = 0; s < sources && error_ == 0; ++s) {
            loaded[s] = room.pointers[s] + at;
            if (owners[s] == kMine) continue;
            const char* const theirs = loaded[s];
            loaded[s] = copies ? stored[0] : blocks_.get() + s * most;
            done = copies;
            note(owners[s], memory_.pull(owners[s], theirs, loaded[s], size), size, moved);
        }
        if (sources > 1 && here == 0) stored[here++] = blocks_.get();
        if (error_ == 0 && here > done) {
            kernel(stored + done, here - done, loaded, sources, size, how);
            moved.loaded += sources * size;
            moved.stored += (here - done) * size;
        }
        const char* const result = sources == 1 ? loaded[0] : stored[0];
        for (u32 d = sources; d < used && error_ == 0; ++d) {
            if (owners[d] == kMine) continue;
            note(owners[d], memory_.push(owners[d], room.pointers[d] + at, result, size), size, moved);
        }
    }
}

}  // namespace hocket
