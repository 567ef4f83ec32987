// What moves bytes from node to node: six functions of whoever can do that, such as an MPI library.
//
// None of them waits, and each gets on with all that is on its way, `test` and `take` above all: nobody else drives a
// wire. `send` and `receive` take all that they are given, and queue what has no room. They are called by any thread of
// the process, one at a time, and return 0 or what `describe` has words for, which ends the communicator.
//
// Messages with one sender, receiver and tag come in the order in which they were sent. One that nobody has received
// yet may hold up any other. Ranks are the communicator's, tags less than 2^15, messages of 0 to 2^30 bytes. One may be
// shorter than the memory that it is received in, which is any memory of the process, users' arrays too: what has to be
// registered with a device, or cut into pieces for it, the wire registers and cuts.
#pragma once

#include <string>

#include "core/plan.h"

namespace hocket {

// A message on its way, as the wire knows it. It stays where it is until it has been dropped, or tested and found done.
struct Ticket {
    u64 word = 0;
};

struct Wire {
    void* context;
    int (*send)(void* context, const void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket);
    int (*receive)(void* context, void* data, u64 bytes, u32 rank, u32 tag, Ticket& ticket);
    // Receives a message of whoever has sent one, if one has come: `found`. Only for notices, of who fails, leaves or
    // waits for long.
    int (*take)(void* context, void* data, u64 bytes, u32 tag, Ticket& ticket, bool& found);
    // Whether the message has left, so that its memory may be used again, received or not; or has come. Then its ticket
    // is void.
    int (*test)(void* context, Ticket& ticket, bool& done);
    // Gives up a message that may still be on its way: who owns the memory keeps it (Network::is_busy). Also called
    // once nothing can be sent any more, as after MPI_Finalize.
    void (*drop)(void* context, Ticket& ticket);
    std::string (*describe)(void* context, int error);
};

}  // namespace hocket
