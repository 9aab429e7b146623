#include "alloc/api/told.h"

namespace rdmalloc {

constinit Told ranges_told;

}  // namespace rdmalloc
