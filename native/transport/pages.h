// What pages private memory lies in, by which the rule for cross-memory attach goes (policy/select.h): the kernel finds
// and holds each page that it copies, which of 4 KB takes about as long as the copy itself.
#pragma once

#include "core/plan.h"

namespace hocket {

constexpr u64 kCallsBetweenScans = 64;  // of one buffer

enum class Pages : u32 { kSmall, kUnknown, kHuge };

// Asks the kernel about memory of this process, by PAGEMAP_SCAN (ioctl(2), Linux 6.7). Where it cannot, nothing is
// known.
class PageScan {
  public:
    PageScan() = default;
    ~PageScan();
    PageScan(const PageScan&) = delete;
    PageScan& operator=(const PageScan&) = delete;

    // Goes by the middle half, as the ends may share their pages with other memory. What nobody has touched yet lies in
    // no pages, which counts as small.
    Pages of(const char* at, u64 bytes);

  private:
    static constexpr int kUnopened = -2;
    int descriptor_ = kUnopened;
};

}  // namespace hocket
