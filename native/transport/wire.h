// What moves bytes from node to node: six functions of whoever can do that, such as an MPI library.
//
// None of them waits. Messages with one sender, receiver and tag come in the order in which they were sent. A message
// may be shorter than the memory that it is received in. They are called by one thread at a time, and return 0 or what
// `describe` has words for.
#pragma once

#include <string>

#include "core/plan.h"

namespace hocket {

// A message on its way, as the wire knows it.
struct Ticket {
    u64 word = 0;
};

struct Wire {
    void* context;
    int (*send)(void* context, const void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket);
    int (*receive)(void* context, void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket);
    // Receives a message of whoever has sent one, if one has come: `found`.
    int (*take)(void* context, void* data, u64 bytes, u32 tag, Ticket& ticket, bool& found);
    // Whether the message has left, so that its memory may be used again, or has come. Then its ticket is void.
    int (*test)(void* context, Ticket& ticket, bool& done);
    // Gives up a message: its memory may be used again, where nobody sends it any more.
    void (*drop)(void* context, Ticket& ticket);
    std::string (*describe)(void* context, int error);
};

}  // namespace hocket
