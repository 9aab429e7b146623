#include "regcache/checkpoint/open_files.h"

#include <cstring>

#include "alloc/for_regcache.h"

namespace rdmalloc::regcache {
namespace {

// How /proc/self/fd names what CRIU refuses, as far as fabrics and the kernel's own ways to
// register memory go ("Can't dump file", "anon-inode ... unsupported").
constexpr const char* kUndumpable[] = {
    "anon_inode:[io_uring]",
    "anon_inode:[userfaultfd]",
    "anon_inode:[infinibandevent]",
    "anon_inode:[uverbs",
    "anon_inode:[vfio",
    "anon_inode:[iommufd",
    "/dev/infiniband/",
    "/dev/userfaultfd",
    "/dev/vfio/",
    "/dev/iommu",
    "/dev/xpmem",
    "/dev/knem",
    "/dev/cxi",
    "/dev/hfi1",
    "/dev/ipath",
    "/dev/nvidia",
    "/dev/kfd",
};

void look(int fd, const char* name, void* arg) {
  auto* found = static_cast<OpenFiles*>(arg);
  for (const char* prefix : kUndumpable) {
    if (std::strncmp(name, prefix, std::strlen(prefix)) != 0) continue;
    if (found->count == OpenFiles::kMost) {
      ++found->left_out;
      return;
    }
    OpenFile& file = found->files[found->count++];
    file.fd = fd;
    std::strncpy(file.name, name, sizeof file.name - 1);
    file.name[sizeof file.name - 1] = 0;
    return;
  }
}

}  // namespace

void find_undumpable_files(OpenFiles* found) {
  *found = {};
  os::each_open_file(look, found);
}

}  // namespace rdmalloc::regcache
