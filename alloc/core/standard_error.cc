// Apart from report.cc, which lies with the code that few programs run (cmake/order_of_code.ld):
// each start comes here.
#include "alloc/core/standard_error.h"

#include "alloc/os/at_start.h"
#include "alloc/os/file.h"

namespace rdmalloc {
namespace {

RDMALLOC_AT_START constinit os::FileIdentity at_start;

}  // namespace

void standard_error_note() {
  at_start = os::identity_of(2);
}

bool has_standard_error() {
  os::FileIdentity now = os::identity_of(2);
  return now.is_open && (now == at_start || now == os::identity_of(1));
}

}  // namespace rdmalloc
