// What became of a call.
#pragma once

#include <string>
#include <vector>

#include "core/interpreter.h"
#include "protocol/header.h"

namespace hocket {

enum class Fault : u32 {
    kNone,
    kMismatch,  // `rank` called something else than the lowest rank; nothing has been touched
    kRefused,   // `rank` says, in `text`, that its arguments are wrong; nothing has been touched
    kDeclined,  // `rank` would rather not make the call, for the reason in `text`; nothing has been touched
    kMemory,    // this rank could not map slots: `text`; nothing has been touched
    kPeer,      // `rank` failed or is gone; from here on the communicator is dead
    kTimeout,
    kInterrupted,  // a signal handler of this rank raised
    kDead,         // it was dead before, for the reason in `rank` and `text`
    kBusy,         // another thread is in a call; this one was not begun
};

struct Outcome {
    Fault fault = Fault::kNone;
    u32 rank = 0;
    std::string text;
    bool stalled = false;  // `stall` says where the execution stood
    Stall stall{};
    double waited = 0;
    std::vector<CallHeader> said{};  // with kMismatch, by every rank
    Variant variant = kBuffered;     // what the call ran
    bool exposed = false;            // others may still write to this rank's buffers, which lie in no arena
};

}  // namespace hocket
