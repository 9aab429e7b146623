#include "alloc/heaps/heap_registrar.h"

namespace rdmalloc {

constinit std::atomic<const HeapRegistrar*> heap_registrar{nullptr};

}  // namespace rdmalloc
