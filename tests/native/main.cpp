// The native core with ranks as threads: the same interpreter, call headers and waiting as between processes, where
// sanitizers can see all of it.
//
//     native_tests                      all tests
//     native_tests litmus [ORDER]       only the litmus tests, in a build with HOCKET_RELAX with that order weakened
//     native_tests NAME [ARGUMENT...]   that test, or tool

#include <algorithm>

#include "device/atomics.h"
#include "runner.h"

using namespace hocket::test;

int main(int count, char** given) {
    const Words words(given + 1, given + count);
#ifdef HOCKET_RELAX
    if (words.size() == 2 && words[0] == "litmus") hocket::weakened = given[2];
#endif
    std::vector<Test>& tests = all_tests();
    std::sort(tests.begin(), tests.end(), [](const Test& a, const Test& b) { return a.name < b.name; });
    if (!words.empty() && words[0] != "litmus") {
        for (const Test& test : tests) {
            if (test.name != words[0]) continue;
            test.body({words.begin() + 1, words.end()});
            return 0;
        }
        std::fprintf(stderr, "there is no test %s\n", words[0].c_str());
        return 2;
    }
    for (const Test& test : tests) {
        if (test.when == When::kNamed || (!words.empty() && test.when != When::kLitmus)) continue;
        test.body({});
        std::printf("%s: passed\n", test.name.c_str());
        std::fflush(stdout);
    }
    return 0;
}
