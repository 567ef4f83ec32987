// A communicator as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "communicator.h"

namespace hocket {

// Whether a signal handler raised. Its exception stays set in this thread.
inline bool python_interrupted() {
    nanobind::gil_scoped_acquire held;
    return PyErr_CheckSignals() != 0;
}

// The GIL during a call. A brief call keeps it, because giving it away and getting it back costs as much as such a call;
// but only while it spins.
class Gil {
  public:
    explicit Gil(bool brief) {
        if (brief) kept_ = this;
        else release();
    }
    ~Gil() {
        if (others_ != nullptr) PyEval_RestoreThread(others_);
        else kept_ = nullptr;
    }
    Gil(const Gil&) = delete;
    Gil& operator=(const Gil&) = delete;

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

// Taken by whoever is in a call. Less than std::mutex, which would cost a short call some per cent more.
class Busy {
  public:
    bool try_lock() { return !taken_.test_and_set(std::memory_order_acquire); }
    void lock() {
        while (!try_lock()) taken_.wait(true, std::memory_order_relaxed);
    }
    void unlock() {
        taken_.clear(std::memory_order_release);
        taken_.notify_one();
    }

  private:
    std::atomic_flag taken_;
};

// The arrays of a call, which it holds for ever unless the call has told no other rank where they lie, or nobody can still
// be writing to them. Destroyed with the GIL.
class Exposed {
  public:
    explicit Exposed(std::array<PyObject*, 2> arrays) : arrays_(arrays) {}
    ~Exposed() {
        if (exposed)
            for (PyObject* array : arrays_) Py_XINCREF(array);
    }
    Exposed(const Exposed&) = delete;
    Exposed& operator=(const Exposed&) = delete;

    bool exposed = true;  // until the call has an outcome

  private:
    const std::array<PyObject*, 2> arrays_;
};

// Together with the memory and the descriptors it uses, which belong to it, and the calls that are made in the
// background.
struct Member {
    Member(u32 rank, u32 size, int descriptor, std::vector<int> lifelines, std::vector<int> arenas, Arena& arena,
           std::vector<pid_t> processes, bool always_reaches, u32 spins, u32 yields, double timeout, u32 threads,
           u64 cache_bytes, bool looks, Recorder* recorder)
        : memory(descriptor, size, std::move(arenas), arena, processes), lifelines(std::move(lifelines)) {
        Settings settings{{spins, yields}, timeout, python_interrupted};
        const Reaching reaching = always_reaches ? Reaching::kAlways : Reaching::kWhereFaster;
        if (!processes.empty()) settings.reaching = reaching;
        settings.threads = threads;
        settings.cache_bytes = cache_bytes;
        if (looks && Clock::trusted()) settings.is_far = is_far;
        settings.patient = Gil::let_go;
        settings.recorder = recorder;
        communicator = std::make_unique<Communicator>(rank, size, memory, this->lifelines, settings);
    }
    ~Member() {
        for (const int lifeline : lifelines)
            if (lifeline >= 0) ::close(lifeline);
    }
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;

    // In a child after fork. Its threads are not here: nothing may wait for them.
    void forked() {
        (void)communicator.release();
        (void)queue.release();
    }

    SharedMemory memory;
    const std::vector<int> lifelines;
    std::unique_ptr<Communicator> communicator;
    Busy busy;
    std::atomic<u32> flights{0};  // calls in the background that have not ended
    std::unique_ptr<Queue> queue = std::make_unique<Queue>();
};

}  // namespace hocket
