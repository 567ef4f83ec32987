// A memcpy that reads and writes each byte once: the C library's may copy the ends of a piece twice, which would hide
// how often hocket does (test_lackey.py).
#include <cstddef>

typedef char Vector __attribute__((vector_size(32), aligned(1), may_alias));

extern "C" [[gnu::optimize("no-tree-loop-distribute-patterns")]] void* memcpy(void* to, const void* from,
                                                                              size_t bytes) {
    char* target = static_cast<char*>(to);
    const char* source = static_cast<const char*>(from);
    size_t at = 0;
    for (; at + sizeof(Vector) <= bytes; at += sizeof(Vector))
        *reinterpret_cast<Vector*>(target + at) = *reinterpret_cast<const Vector*>(source + at);
    for (; at < bytes; ++at) target[at] = source[at];
    return to;
}
