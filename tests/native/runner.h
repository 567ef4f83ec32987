// Named native tests: a file defines them, main.cpp runs them.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            std::exit(1);                                                                      \
        }                                                                                      \
    } while (0)

// The body follows, as that of a function; it is given `arguments`. A LITMUS also runs with memory orders weakened,
// a TOOL only where it is named.
#define TEST(name) HOCKET_TEST(name, kAlways)
#define LITMUS(name) HOCKET_TEST(name, kLitmus)
#define TOOL(name) HOCKET_TEST(name, kNamed)
#define HOCKET_TEST(name, when)                                                            \
    void name(const Words& arguments);                                                     \
    const Registration registration_of_##name({#name, ::hocket::test::When::when, &name}); \
    void name([[maybe_unused]] const Words& arguments)

namespace hocket::test {

using Words = std::vector<std::string>;

enum class When { kAlways, kLitmus, kNamed };

struct Test {
    std::string name;
    When when;
    void (*body)(const Words& arguments);
};

inline std::vector<Test>& all_tests() {
    static std::vector<Test> tests;
    return tests;
}

struct Registration {
    explicit Registration(const Test& test) { all_tests().push_back(test); }
};

}  // namespace hocket::test
