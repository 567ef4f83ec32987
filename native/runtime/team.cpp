#include "runtime/team.h"

#include <csignal>
#include <system_error>

#include "protocol/waiting.h"

namespace hocket {

namespace {

struct SignalsBlocked {
    sigset_t before;
    SignalsBlocked() {
        sigset_t all;
        ::sigfillset(&all);
        ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
};

std::thread start(std::function<void()> body) {
    const SignalsBlocked inherited;  // by the new thread
    return std::thread([body = std::move(body)] {
        worker_thread = true;
        body();
    });
}

}  // namespace

Team::~Team() {
    {
        const std::lock_guard<std::mutex> held(lock_);
        closing_ = true;
    }
    begun_.notify_all();
    for (std::thread& other : others_) other.join();
}

unsigned Team::grow(unsigned threads) {
    try {
        others_.reserve(threads);
        while (others_.size() + 1 < threads) {
            const unsigned number = unsigned(others_.size()) + 1;
            others_.push_back(start([this, number, seen = round_] { work(number, seen); }));
        }
    } catch (const std::system_error&) {
    }
    return unsigned(others_.size()) + 1;
}

void Team::together(const std::function<void(unsigned)>& body) {
    {
        const std::lock_guard<std::mutex> held(lock_);
        body_ = &body;
        working_ = unsigned(others_.size());
        ++round_;
    }
    begun_.notify_all();
    body(0);
    std::unique_lock<std::mutex> held(lock_);
    ended_.wait(held, [this] { return working_ == 0; });
}

void Team::work(unsigned number, unsigned long long seen) {
    for (std::unique_lock<std::mutex> held(lock_);;) {
        begun_.wait(held, [&] { return closing_ || round_ != seen; });
        if (closing_) return;
        seen = round_;
        const auto& body = *body_;
        held.unlock();
        body(number);
        held.lock();
        if (--working_ == 0) ended_.notify_one();
    }
}

Queue::~Queue() {
    {
        const std::lock_guard<std::mutex> held(lock_);
        closing_ = true;
    }
    given_.notify_one();
    if (thread_.joinable()) thread_.join();
}

void Queue::submit(Job& job) {
    if (!thread_.joinable()) thread_ = start([this] { work(); });
    {
        const std::lock_guard<std::mutex> held(lock_);
        jobs_.push_back(&job);
    }
    given_.notify_one();
}

void Queue::wait(const Job& job) {
    std::unique_lock<std::mutex> held(lock_);
    finished_.wait(held, [&] { return job.done; });
}

void Queue::work() {
    for (std::unique_lock<std::mutex> held(lock_);;) {
        given_.wait(held, [this] { return closing_ || !jobs_.empty(); });
        if (jobs_.empty()) return;
        Job& job = *jobs_.front();
        jobs_.pop_front();
        held.unlock();
        job.body();
        held.lock();
        job.done = true;
        finished_.notify_all();
    }
}

}  // namespace hocket
