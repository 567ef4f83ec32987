#include "runtime/team.h"

#include <chrono>
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

std::jthread start(std::function<void(const std::stop_token&)> body) {
    const SignalsBlocked inherited;  // by the new thread
    return std::jthread([body = std::move(body)](const std::stop_token& closing) {
        worker_thread = true;
        body(closing);
    });
}

}  // namespace

unsigned Team::grow(unsigned threads) {
    try {
        others_.reserve(threads);
        while (others_.size() + 1 < threads) {
            const unsigned number = unsigned(others_.size()) + 1;
            others_.push_back(
                start([this, number, seen = round_](const auto& closing) { work(closing, number, seen); }));
        }
    } catch (const std::system_error&) {
    }
    return unsigned(others_.size()) + 1;
}

void Team::together(const std::function<void(unsigned)>& body, const std::function<void()>& meanwhile) {
    {
        const std::lock_guard<std::mutex> held(lock_);
        body_ = &body;
        working_ = unsigned(others_.size());
        ++round_;
    }
    begun_.notify_all();
    body(0);
    const std::chrono::nanoseconds nap(kNapNanoseconds);
    for (std::unique_lock<std::mutex> held(lock_); !ended_.wait_for(held, nap, [this] { return working_ == 0; });) {
        held.unlock();
        meanwhile();
        held.lock();
    }
}

void Team::work(const std::stop_token& closing, unsigned number, unsigned long long seen) {
    for (std::unique_lock<std::mutex> held(lock_); begun_.wait(held, closing, [&] { return round_ != seen; });) {
        seen = round_;
        const auto& body = *body_;
        held.unlock();
        body(number);
        held.lock();
        if (--working_ == 0) ended_.notify_one();
    }
}

void Queue::submit(Job& job, bool wake) {
    if (!thread_.joinable()) thread_ = start([this](const auto& closing) { work(closing); });
    {
        const std::lock_guard<std::mutex> held(lock_);
        jobs_.push_back(&job);
    }
    if (wake) this->wake();
}

void Queue::help(const Job& last) {
    std::unique_lock<std::mutex> held(lock_);
    while (!last.done && !busy_ && !jobs_.empty()) do_next(held);
    if (!jobs_.empty()) wake();
}

void Queue::work(const std::stop_token& closing) {
    const auto ready = [this] { return !busy_ && !jobs_.empty(); };
    for (std::unique_lock<std::mutex> held(lock_); given_.wait(held, closing, ready);) do_next(held);
}

void Queue::do_next(std::unique_lock<std::mutex>& held) noexcept {
    Job& job = *jobs_.front();
    jobs_.pop_front();
    busy_ = true;
    held.unlock();
    job.body();
    held.lock();
    busy_ = false;
    job.done = true;
    finished_.notify_all();
}

}  // namespace hocket
