// What pages private memory lies in, by which the rule for cross-memory attach goes (policy/select.h): the kernel finds
// and holds each page that it copies, which of 4 KB takes about half of a copy's time.
#pragma once

#include "core/plan.h"

namespace hocket {

constexpr u64 kCallsBetweenScans = 64;  // of one buffer

enum class Pages : u32 { kSmall, kUnknown, kHuge };  // the worst first

// Asks the kernel about memory of this process, by PAGEMAP_SCAN (Linux 6.7). Where it cannot say, nothing is known.
class PageScan {
  public:
    PageScan() = default;
    ~PageScan();
    PageScan(const PageScan&) = delete;
    PageScan& operator=(const PageScan&) = delete;

    // Goes by the middle half, as the ends may share their pages with other memory. One page that is not huge makes all
    // small, as does memory that nobody has touched yet, which has no pages.
    Pages of(const char* at, u64 bytes);

  private:
    static constexpr int kUnopened = -2;
    int descriptor_ = kUnopened;
};

}  // namespace hocket
