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
    Team() = default;
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // Makes it that many, with the caller's; fewer if the system gives no more. Returns how many they are.
    unsigned grow(unsigned threads);

    // Calls body(0) here and body(1), body(2) ... on the others; returns when all have returned.
    void together(const std::function<void(unsigned)>& body);

  private:
    void work(unsigned number, unsigned long long seen);

    std::vector<std::thread> others_;
    std::mutex lock_;
    std::condition_variable begun_, ended_;
    const std::function<void(unsigned)>* body_ = nullptr;
    unsigned long long round_ = 0;
    unsigned working_ = 0;
    bool closing_ = false;
};

// Does jobs one after the other, in the order given, on a thread of its own that starts with the first.
class Queue {
  public:
    struct Job {
        std::function<void()> body;
        bool done = false;
    };

    Queue() = default;
    // Waits for the jobs that were given.
    ~Queue();
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    // The job belongs to the caller and stays where it is until it is done.
    void submit(Job& job);
    // Waits until it is done.
    void wait(const Job& job);

  private:
    void work();

    std::thread thread_;
    std::mutex lock_;
    std::condition_variable given_, finished_;
    std::deque<Job*> jobs_;
    bool closing_ = false;
};

}  // namespace hocket
