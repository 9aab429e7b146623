#include "regcache/core/check_domains.h"

#include <errno.h>

#include "alloc/for_regcache.h"
#include "regcache/core/domain.h"

namespace rdmalloc::regcache {
namespace {

Message begin(const char* who) {
  return Message().text("warning: ").text(who).text(": ");
}

const char* remedy(int error) {
  switch (error) {
    case -ENODEV:
      return " is lost, its device is gone; close it and open another";
    case -ECHILD:
      return " is of the process that this one was forked from; open one here";
    default:
      return " is NULL, closed, or no domain; name domains that are open";
  }
}

}  // namespace

int check_domains(const char* who, rdmalloc_domain* const* domains, std::size_t count) {
  bool warns = who != nullptr;
  if (domains == nullptr || count == 0 || count > kMostDomains) {
    if (warns)
      begin(who)
          .text(domains == nullptr ? "`domains` is NULL, for " : "")
          .number(count)
          .text(" domains; allowed: 1 to ")
          .number(kMostDomains)
          .warn();
    return -EINVAL;
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (int error = domain_check(domain_of(domains[i]))) {
      if (warns && error != -EAGAIN)
        begin(who).text("domains[").number(i).text("]").text(remedy(error)).warn();
      return error;
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (domains[j] != domains[i]) continue;
      if (warns)
        begin(who)
            .text("domains[")
            .number(i)
            .text("] is domains[")
            .number(j)
            .text("] too (")
            .value(domain_of(domains[i])->ops.name)
            .text("); name each domain once")
            .warn();
      return -EINVAL;
    }
  }
  return 0;
}

}  // namespace rdmalloc::regcache
