// Whether private memory lies in huge pages, by which the rule for cross-memory attach goes (policy/select.h): the
// kernel finds and holds each page that it copies, which of 4 KB takes about half of a copy's time.
#pragma once

#include <unistd.h>

#include "core/plan.h"

namespace hocket {

// Asks the kernel about memory of this process, by PAGEMAP_SCAN (Linux 6.7).
class PageScan {
  public:
    ~PageScan() {
        if (descriptor_ >= 0) ::close(descriptor_);
    }
    PageScan& operator=(PageScan&&) = delete;

    // Whether the middle half does, as the ends may share their pages with other memory. False where the kernel cannot
    // say, and for mapped memory that nobody has touched yet, which has no pages.
    bool finds_huge(const char* at, u64 bytes);

  private:
    static constexpr int kUnopened = -2;
    int descriptor_ = kUnopened;
};

}  // namespace hocket
