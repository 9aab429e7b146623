#include "alloc/os/huge_pool.h"

#include "alloc/os/decimal.h"
#include "alloc/os/file.h"

namespace rdmalloc::os {
namespace {

bool read_number(std::size_t page_bytes, int node, const char* file, std::uint64_t* value) {
  char text[32];
  return read_file(huge_pool_file(page_bytes, node, file).c_str(), text) != 0 &&
         parse_number(text, value);
}

}  // namespace

Path huge_pool_file(std::size_t page_bytes, int node, const char* file) {
  Path path(node >= 0 ? "/sys/devices/system/node/node" : "/sys/kernel/mm/");
  if (node >= 0) path.number(static_cast<unsigned>(node)).text("/");
  path.text("hugepages/hugepages-").number(page_bytes >> 10).text("kB/").text(file);
  return path;
}

bool huge_pool(std::size_t page_bytes, int node, HugePool* pool) {
  std::uint64_t reserved = 0;
  if (!read_number(page_bytes, node, "nr_hugepages", &pool->pages) ||
      !read_number(page_bytes, node, "free_hugepages", &pool->free))
    return false;
  // Reservations are of no node.
  if (node < 0) read_number(page_bytes, node, "resv_hugepages", &reserved);
  pool->free -= reserved < pool->free ? reserved : pool->free;
  return true;
}

}  // namespace rdmalloc::os
