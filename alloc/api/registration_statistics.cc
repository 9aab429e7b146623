#include "alloc/api/registration_statistics.h"

namespace rdmalloc {

constinit std::atomic<const RegistrationStatistics*> registration_statistics{nullptr};

}  // namespace rdmalloc
