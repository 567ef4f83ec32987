// Threads that work for one rank: those that share a call's thread blocks with the caller, and the one that makes calls
// while the caller goes on.
//
// They block all signals, which are for the threads of Python, and touch no Python object: `worker_thread` (waiting.h).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hocket {

// Threads that do one thing together, again and again.
class Team {
  public:
    // Makes it that many at least, with the caller's; fewer if the system gives no more. Returns how many they are.
    unsigned grow(unsigned threads);

    // Calls body(0) here and body(1), body(2) ... on the others; returns when all have returned, and calls `meanwhile`
    // now and then while it waits for that.
    void together(const std::function<void(unsigned)>& body, const std::function<void()>& meanwhile);

  private:
    void work(const std::stop_token& closing, unsigned number, unsigned long long seen);

    std::mutex lock_;
    std::condition_variable_any begun_, ended_;
    const std::function<void(unsigned)>* body_ = nullptr;
    unsigned long long round_ = 0;
    unsigned working_ = 0;
    std::vector<std::jthread> others_;  // they end before what they use
};

// Does jobs one after the other, in the order given, on a thread of its own that starts with the first, or on one that
// would wait for them. At its end it waits for those that were given.
class Queue {
  public:
    struct Job {
        std::function<void()> body;
        bool done = false;
    };

    // The job belongs to the caller and stays where it is until it is done. Without `wake`, the thread may sleep on
    // until somebody calls `wake` or `help`.
    void submit(Job& job, bool wake = true);
    // Has the thread look for jobs.
    void wake() { given_.notify_one(); }
    // Does the jobs up to this one, as long as nobody else does any.
    void help(const Job& last);
    // Waits until it is done.
    void wait(const Job& job) {
        std::unique_lock<std::mutex> held(lock_);
        finished_.wait(held, [&] { return job.done; });
    }

  private:
    void work(const std::stop_token& closing);
    void do_next(std::unique_lock<std::mutex>& held) noexcept;

    std::mutex lock_;
    std::condition_variable_any given_, finished_;
    std::deque<Job*> jobs_;
    bool busy_ = false;  // somebody does a job
    std::jthread thread_;
};

}  // namespace hocket
