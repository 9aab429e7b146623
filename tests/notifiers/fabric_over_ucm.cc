// SPDX-License-Identifier: BSD-3-Clause
//
// A libfabric that is linked with libucm (closing_library), and calls the test where it is asked
// for its release: as nothing else, while rdmalloc holds it.
#include <stdint.h>

#include "tests/notifiers/closing_library.h"

extern "C" __attribute__((visibility("default"))) uint32_t fi_version() {
  if (auto* call = closing_library_state()->at_look.exchange(nullptr)) call();
  return 0;
}
