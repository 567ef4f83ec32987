#include "transport/cma.h"

#include <sys/uio.h>
#include <cerrno>

namespace hocket {
namespace {

// What came of a copy by the kernel. It ends early at a page that it cannot reach.
int told(ssize_t copied, u64 bytes) { return copied < 0 ? errno : u64(copied) < bytes ? EFAULT : 0; }

}  // namespace

int pull_from(pid_t process, const char* theirs, char* mine, u64 bytes) {
    const iovec here{mine, bytes}, there{const_cast<char*>(theirs), bytes};
    return told(::process_vm_readv(process, &here, 1, &there, 1, 0), bytes);
}

int push_to(pid_t process, char* theirs, const char* mine, u64 bytes) {
    const iovec here{const_cast<char*>(mine), bytes}, there{theirs, bytes};
    return told(::process_vm_writev(process, &here, 1, &there, 1, 0), bytes);
}

}  // namespace hocket
