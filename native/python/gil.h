// The GIL of CPython: given away while a rank is in a call, and taken back.
#pragma once

#include <Python.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace hocket {

// Calls what may have to wait for the GIL, and throws nothing. Once the interpreter is being finalized, other threads
// get it no more. CPython before 3.14 then ends such a thread by unwinding its stack, where destructors would touch
// Python objects or let nothing pass, which aborts the process. Here it stays where it is until the process ends, as it
// does in 3.14.
template <class Body> auto or_stay(Body body) noexcept {
    try {
        return body();
    } catch (...) {
        for (;;) ::pause();
    }
}

// Whether a signal handler raised. Its exception stays set in this thread. Only the first thread runs handlers; others
// need no GIL, which may be held for long.
inline bool python_interrupted() {
    if (::syscall(SYS_gettid) != ::getpid()) return false;
    return or_stay([] {
        const PyGILState_STATE before = PyGILState_Ensure();
        const bool raised = PyErr_CheckSignals() != 0;
        PyGILState_Release(before);
        return raised;
    });
}

// The GIL during a call. A brief call keeps it, because giving it away and getting it back costs as much as such a
// call; but only while it spins.
class Gil {
  public:
    explicit Gil(bool brief = false) {
        if (brief) kept_ = this;
        else release();
    }
    ~Gil() {
        if (others_ != nullptr) or_stay([&] { PyEval_RestoreThread(others_); });
        else kept_ = nullptr;
    }
    Gil& operator=(Gil&&) = delete;

    // Lets other threads have it, if the calling thread has it for a call.
    static void let_go() {
        if (kept_ != nullptr) kept_->release();
    }

  private:
    void release() {
        kept_ = nullptr;
        others_ = PyEval_SaveThread();
    }

    // No call to find it: the C libraries of NumPy's platforms have room for it in a module that is loaded late.
    [[gnu::tls_model("initial-exec")]] static inline thread_local Gil* kept_ = nullptr;
    PyThreadState* others_ = nullptr;
};

}  // namespace hocket
