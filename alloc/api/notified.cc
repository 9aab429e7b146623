#include "alloc/api/notified.h"

namespace rdmalloc {

constinit Notified ranges_notified;

}  // namespace rdmalloc
