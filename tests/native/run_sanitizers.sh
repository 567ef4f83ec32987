#!/bin/sh
# Builds and runs the native tests under ThreadSanitizer and under AddressSanitizer with UBSan, and with them every
# library schedule over the delayed queue, from plans that Python writes: hocket must be installed for ${PYTHON:-python3}.
# Weakens each named memory order in turn, and the wait for readers, and demands that a litmus test turns red.
# Usage: run_sanitizers.sh [BUILD_DIRECTORY [build]]    `build`: no more than that, which may go on beside other tests
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
work=${1:-$root/build/sanitizers}
mkdir -p "$work"
export TSAN_OPTIONS="halt_on_error=1 exitcode=66" ASAN_OPTIONS="detect_leaks=1"

build() { # directory, options
    directory=$work/$1
    shift
    cmake -S "$root" -B "$directory" -DHOCKET_NATIVE_TESTS=ON "$@" >"$directory.log" 2>&1 &&
        cmake --build "$directory" --parallel "$(nproc)" >>"$directory.log" 2>&1 || {
        cat "$directory.log"
        exit 1
    }
}

build thread -DHOCKET_SANITIZE=thread -DHOCKET_RELAX=ON
build address -DHOCKET_SANITIZE=address,undefined
[ "${2:-}" != build ] || exit 0
(cd "$root" && "${PYTHON:-python3}" -m tests.native.schedules "$work/calls")

echo "== ThreadSanitizer"
"$work/thread/native_tests"
"$work/thread/native_tests" delayed "$work/calls"

orders=READERS
for order in FILLED FREED SEMAPHORE HEADER STATE DONE; do
    orders="$orders ${order}_PUBLISH ${order}_OBSERVE"
done
failed=0
for order in $orders; do
    if "$work/thread/native_tests" litmus "$order" >"$work/relaxed.out" 2>&1; then
        echo "NOT NOTICED: $order relaxed"
        failed=1
    elif grep -q "ThreadSanitizer: data race" "$work/relaxed.out"; then
        echo "noticed: $order relaxed"
    else
        echo "failed otherwise: $order relaxed"
        cat "$work/relaxed.out"
        failed=1
    fi
done
[ $failed = 0 ]

echo "== AddressSanitizer, UndefinedBehaviorSanitizer"
"$work/address/native_tests"
"$work/address/native_tests" delayed "$work/calls"
